# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""`layer_ops` for CPUs, compiled by Numba: each reads its input once, where torch makes a pass for every operation.

A small batch is done by one thread, since waking another would take longer. What comes from a model's own layers is not
checked: all tensors of a call are contiguous, on the CPU, and of one of the dtypes in `numba_numbers`.
"""

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .numba_numbers import LOG2_E, compiled, exp2, launch, narrow, num_threads, numbers, widen

NUMBERS_PER_THREAD = 1 << 15


@compiled(parallel=True)
def _add_rms_norm(out, x, delta, weight, eps, parts):
    rows, size = x.shape
    for part in prange(parts):
        for row in range(rows * part // parts, rows * (part + 1) // parts):
            line, result, total = x[row], out[row], np.float32(0)
            if len(delta):
                added = delta[row]
                for i in range(size):
                    line[i] = narrow(widen(line[i]) + widen(added[i]), line)
            for i in range(size):
                total += widen(line[i]) * widen(line[i])
            scale = np.float32(1) / np.sqrt(total / np.float32(size) + eps)
            for i in range(size):
                result[i] = narrow(widen(line[i]) * scale * widen(weight[i]), result)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As ``layer_ops.add_rms_norm``; the sum is `x` itself, which must be contiguous."""
    out = torch.empty_like(x)
    delta = x[:0] if delta is None else delta
    arrays = numbers(out), numbers(x), numbers(delta), numbers(weight)
    launch(_add_rms_norm, *arrays, np.float32(eps), _parts(x))
    return x, out


@compiled(parallel=True)
def _rotate(x, num_heads, cos, sin, parts):
    num_tokens, _, head_dim = x.shape
    half = head_dim // 2
    for part in prange(parts):
        for token in range(num_tokens * part // parts, num_tokens * (part + 1) // parts):
            cosines, sines = cos[token], sin[token]
            for head in range(num_heads):
                low, high = x[token, head, :half], x[token, head, half:]
                for i in range(half):
                    left, right = widen(low[i]), widen(high[i])
                    low[i] = narrow(left * widen(cosines[i]) + right * widen(sines[i]), low)
                    high[i] = narrow(right * widen(cosines[half + i]) + left * widen(sines[half + i]), high)


def rotate(projected: Tensor, num_heads: int, cos: Tensor, sin: Tensor) -> None:
    """As ``layer_ops.rotate``."""
    launch(_rotate, numbers(projected), num_heads, numbers(cos), numbers(sin), _parts(projected))


@compiled(parallel=True)
def _silu_and_mul(out, gate_up, parts):
    rows, size = out.shape
    for part in prange(parts):
        for row in range(rows * part // parts, rows * (part + 1) // parts):
            gate, up, result = gate_up[row, :size], gate_up[row, size:], out[row]
            for i in range(size):
                x = widen(gate[i])
                small = exp2(-abs(x) * LOG2_E)
                share = np.float32(1) if x >= 0 else small
                result[i] = narrow(x * share / (np.float32(1) + small) * widen(up[i]), result)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """As ``layer_ops.silu_and_mul``; `gate_up` must be contiguous."""
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    launch(_silu_and_mul, numbers(out), numbers(gate_up), _parts(gate_up))
    return out


@compiled(parallel=True)
def _largest_of_each(out, logits, parts):
    rows, size = logits.shape
    for part in prange(parts):
        for row in range(rows * part // parts, rows * (part + 1) // parts):
            line, largest = logits[row], widen(logits[row, 0])
            for i in range(size):
                largest = max(largest, widen(line[i]))
            for i in range(size):
                if widen(line[i]) == largest:
                    out[row] = i
                    break


def largest_of_each(logits: Tensor) -> list[int]:
    """As ``layer_ops.largest_of_each``."""
    out = np.zeros(len(logits), np.int64)
    launch(_largest_of_each, out, numbers(logits.contiguous()), _parts(logits))
    found: list[int] = out.tolist()
    return found


def _parts(x: Tensor) -> int:
    return max(1, min(num_threads(), x.numel() // NUMBERS_PER_THREAD))
