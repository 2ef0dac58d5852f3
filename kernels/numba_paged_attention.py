# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Paged attention and the KV write for CPUs, compiled by Numba: what `numba_decode` and `numba_prefill` offer to torch.

Nothing is gathered into a dense tensor: the kernels follow the block table. They are handed the memory of a layer as
rows of head_dim numbers, and where to find things in it, counted in rows:

    row = block_table[position // block_size] * block stride + position % block_size     of a key, in its KV head
          + head stride * KV head                                                        + value stride, of its value
"""

import time
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from . import numba_few_rows, numba_layer_ops
from .checks import check_attention, check_write
from .numba_attention_parts import merge
from .numba_decode import decode, plan_decode
from .numba_numbers import HANDED_OVER_AS, LOG2_E, compiled, launch, num_threads, numbers
from .numba_prefill import plan_prefill, prefill

TOKENS_PER_THREAD = 8  # when they are written: they go to as many places in memory, times twice the KV heads


def paged_attention(
    query: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """As ``reference.paged_attention``, in as many threads as torch uses.

    Raises:
        ValueError, TypeError: shapes or dtypes do not fit, tensors are not on the CPU, or the slots of a block have
            gaps between them.
    """
    check_attention(query, kv_layer, block_tables, query_start_loc, seq_lens, sliding_window, softcap, out)
    query = query.contiguous()
    out = torch.empty_like(query) if out is None else out
    if query.shape[0] == 0:
        return out
    result = out if out.is_contiguous() else torch.empty_like(query)
    rows = _rows(kv_layer)
    launch(
        _attend,
        numbers(result),
        numbers(query),
        *rows,
        block_tables.contiguous().numpy(),
        query_start_loc.numpy(),
        seq_lens.numpy(),
        (np.float32(scale * LOG2_E), sliding_window or 1 << 40, np.float32((softcap or 0) * LOG2_E)),
        num_threads(),
    )
    return out if result is out else out.copy_(result)


@compiled(parallel=True)
def _attend(out, query, kv, strides, block, tables, starts, contexts, mask, threads):
    """The kernel: sequences with one query token are decoded, those with more prefilled."""
    (num_heads, head_dim), num_kv_heads = query.shape[1:], strides[2]
    group = num_heads // num_kv_heads
    decodes = plan_decode(tables, starts, contexts, block[0], mask[1], threads)
    prefills = plan_prefill(starts, contexts, group, num_kv_heads, threads)
    (sequences, _, _, _, of_sequence, _), (tiles, block_q, num_splits, _, _) = decodes, prefills
    decoded = np.empty((of_sequence[-1], num_heads, head_dim + 2), np.float32)
    items, rows = len(tiles) * num_kv_heads if num_splits > 1 else 0, (block_q * group + 3) // 4 * 4
    prefilled = np.empty((items, num_splits, rows, head_dim + 2), np.float32)
    for unsigned in prange(threads):
        thread = np.int64(unsigned)
        decode(thread, decoded, decodes, query, kv, strides, block, tables, starts, mask)
        prefill(thread, threads, out, prefilled, prefills, query, kv, strides, block, tables, starts, contexts, mask)
    for unsigned in prange(threads):
        thread = np.int64(unsigned)
        for number in range(thread, len(sequences), threads):
            token = starts[sequences[number]]
            merge(out[token : token + 1], decoded[of_sequence[number] : of_sequence[number + 1]])
        for item in range(thread, items, threads):
            kv_head, (sequence, first) = item % num_kv_heads, tiles[item // num_kv_heads]
            last = min(first + block_q, starts[sequence + 1])
            merge(out[first:last, kv_head * group : (kv_head + 1) * group], prefilled[item])


@compiled(parallel=True)
def _scatter(key, value, kv, strides, block, slots, parts):
    """Copy each token's rows, [num_tokens, num_kv_heads, head_dim], to its slot."""
    (value_stride, head_stride, num_kv_heads), (block_size, block_stride) = strides, block
    for part in prange(parts):
        for token in range(len(slots) * part // parts, len(slots) * (part + 1) // parts):
            if slots[token] < 0:
                continue
            first = slots[token] // block_size * block_stride + slots[token] % block_size
            for head in range(num_kv_heads):
                kv[first + head * head_stride] = key[token, head]
                kv[first + head * head_stride + value_stride] = value[token, head]


def write_kv(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> None:
    """As ``reference.write_kv``. Raises ValueError or TypeError if shapes, dtypes or layout do not fit."""
    check_write(key, value, kv_layer, slot_mapping)
    rows = _rows(kv_layer)
    parts = max(1, min(num_threads(), len(key) // TOKENS_PER_THREAD))
    tensors = (numbers(part.to(kv_layer.dtype).contiguous()) for part in (key, value))
    launch(_scatter, *tensors, *rows, slot_mapping.numpy(), parts)


def compile_for(dtype: torch.dtype) -> float:
    """Compile for a cache of this dtype, or load what an earlier process compiled; returns the seconds it took."""
    started = time.perf_counter()
    kv_layer, row = torch.zeros((1, 2, 1, 2, 8), dtype=dtype), torch.zeros((1, 1, 8), dtype=dtype)
    table = torch.zeros((1, 1), dtype=torch.int32)
    write_kv(row, row, kv_layer, torch.zeros(1, dtype=torch.int64))
    ends = torch.tensor([0, 1], dtype=torch.int32)
    paged_attention(row, kv_layer, table, ends, ends[1:], scale=1.0)
    numba_layer_ops.add_rms_norm(row[0], row[0], row[0, 0], 1.0)
    numba_layer_ops.rotate(row, 1, row[0], row[0])
    numba_layer_ops.silu_and_mul(row[0])
    numba_layer_ops.largest_of_each(row[0])
    numba_few_rows.compile_for(dtype)
    return time.perf_counter() - started


def _rows(kv_layer: Tensor) -> tuple[np.ndarray[Any, Any], tuple[int, int, int], tuple[int, int]]:
    """The rows from a layer's first to its last, other layers' in between included, and how it lies in them:

    (value stride, head stride, number of KV heads) and (block size, block stride).
    """
    if kv_layer.device.type != "cpu" or kv_layer.dtype not in HANDED_OVER_AS:
        raise TypeError(
            f"the KV cache is {kv_layer.dtype} on {kv_layer.device}; the Numba kernel reads "
            f'{", ".join(map(str, HANDED_OVER_AS))} on the CPU: use kernel="torch"'
        )
    (num_blocks, _, num_kv_heads, block_size, head_dim), strides = kv_layer.shape, kv_layer.stride()
    if strides[3:] != (head_dim, 1) or any(stride % head_dim for stride in strides[:3]):
        raise ValueError(
            f"the KV cache has strides {strides}; the slots of a block must follow one another without gaps, and all "
            f'other strides be multiples of head_dim = {head_dim}: use kernel="torch"'
        )
    block, value, head = (stride // head_dim for stride in strides[:3])
    num_rows = (num_blocks - 1) * block + value + (num_kv_heads - 1) * head + block_size
    rows = numbers(kv_layer.as_strided((num_rows, head_dim), (head_dim, 1)))
    return rows, (value, head, num_kv_heads), (block_size, block)
