# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Paged attention for CPUs, compiled by Numba: prefill and decode alike, straight from the blocks.

Nothing is gathered into a dense tensor. A thread takes one piece of work after the other: a few query tokens of one
sequence, with all the heads that share a KV head, and a stretch of its keys. It walks that stretch a tile at a time:

    block_table        7              1              3            physical blocks of 4 slots
    keys         │ 0  1  2  3 │ 4  5  6  7 │ 8  9  .  . │
                 └──────── tile 0 ─────────┘└── tile 1 ──┘        copied side by side into the thread's own cache, as
                                                                  float32 whatever the KV cache holds

    for each row (a token and a head):   scores = row · keys      a softmax that goes on from tile to tile: the largest
                                         result += weights · values       score so far, the sum of weights, the result

The inner loops go over the contiguous numbers of a head or of a tile, which is what a compiler turns into vector code.
A causal bound and a sliding window only say at which key a row begins and ends. Where there are fewer sequences than
threads could share, contexts are cut into stretches whose results are merged (Flash-Decoding, Dao et al., 2023).
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from .checks import check_attention, check_write

TILE = 64  # keys at a time: with head_dim 64 a tile has 16 KiB, half of a first-level cache
ROWS = 48  # query tokens times heads of a group that share a tile
MIN_SPLIT = 256  # keys of a stretch, at least: merging costs as much as a few keys
LOG2_E = float(np.log2(np.e))  # scores are kept in powers of 2, which are cheaper than powers of e
PIECES = 8  # of work for each thread, so that none waits long for the last

FORMATS: dict[torch.dtype, tuple[torch.dtype, int, int, float]] = {
    # how the bits of a number become those of a float32: integer of that width, shift, mask, factor
    torch.float32: (torch.int32, 0, -1, 1.0),
    torch.bfloat16: (torch.int16, 16, -1, 1.0),
    torch.float16: (torch.int16, 13, ~0x70000000, 2.0**112),  # its exponent is narrower, and counts from elsewhere
}

_launch = threading.Lock()
"""Numba's plainest thread pool allows one launch at a time, and two launches would share the cores anyway."""


def compiled(**options: bool) -> Callable[[Any], Any]:
    """`njit`, whose result is kept for the next process, unless there is no folder to keep it in."""

    def decorate(function):
        try:
            return njit(cache=True, fastmath=True, **options)(function)
        except RuntimeError:
            return njit(fastmath=True, **options)(function)

    return decorate


@njit(fastmath=True)
def exp2(x):
    """2 ** x for x <= 0, to 2e-7: a polynomial for the fraction, and the whole part straight into the exponent."""
    x = max(x, np.float32(-126))
    whole = np.floor(x)
    part = x - whole
    value = np.float32(0.00187757658) * part + np.float32(0.00898934063)
    value = value * part + np.float32(0.0558263175)
    value = value * part + np.float32(0.240153611)
    value = value * part + np.float32(0.693153083)
    value = value * part + np.float32(0.99999994)
    return value * np.int32((np.int32(whole) + 127) << 23).view(np.float32)


@njit(fastmath=True)
def load_tile(tile, kv, base, table, block, number, start, stop):
    """Copy the keys (or values) at positions start … stop - 1 out of their blocks into `tile` [TILE, head_dim]."""
    (block_size, block_stride), (shift, mask, factor) = block, number
    head_dim = tile.shape[1]
    bits, floats = tile.view(np.int32).reshape(-1), tile.reshape(-1)
    position, filled = start, 0
    while position < stop:
        slot = position % block_size
        count = min(block_size - slot, stop - position)
        size = count * head_dim
        source = base + table[position // block_size] * block_stride + slot * head_dim
        numbers, target = kv[source : source + size], bits[filled : filled + size]
        for i in range(size):
            target[i] = (np.int32(numbers[i]) << shift) & mask
        position += count
        filled += size
    if factor != 1:
        for i in range(filled):
            floats[i] *= factor


@njit(fastmath=True)
def score(scores, query, tile, first, last, softcap):
    """Dot products of one row with keys first … last - 1 of the tile; returns the largest. A `softcap` of 0 is none."""
    largest = np.float32(-1e30)
    for k in range(first, last):
        key, total = tile[k], np.float32(0)
        for d in range(len(query)):
            total += query[d] * key[d]
        if softcap:
            total = softcap * np.tanh(total / softcap)
        scores[k] = total
        largest = max(largest, total)
    return largest


@njit(fastmath=True)
def add_values(result, scores, tile, first, last, largest):
    """Turn scores into weights, add the weighted values to `result`; returns the sum of weights."""
    total = np.float32(0)
    for k in range(first, last):
        scores[k] = exp2(scores[k] - largest)
        total += scores[k]
    for k in range(first, last):
        value, weight = tile[k], scores[k]
        for d in range(len(result)):
            result[d] += weight * value[d]
    return total


@njit(fastmath=True)
def visible(position, window, start, stop):
    """Which keys of the tile start … stop - 1 the query at `position` sees: from, to."""
    return max(0, position - window + 1 - start), max(0, min(stop, position + 1) - start)


@njit(fastmath=True)
def attend_piece(found, query, kv, base, value_stride, table, block, number, position, begin, end, mask):
    """Query tokens [n, group, head_dim], the first at `position`, over keys begin … end - 1 of their KV head.

    A row of `found` becomes what it has found: the result so far, its sum of weights, its largest score.
    """
    (num_tokens, group, head_dim), (scale, window, softcap) = query.shape, mask
    tile = np.empty((TILE, head_dim), np.float32)
    scores = np.empty((num_tokens * group, TILE), np.float32)
    queries = np.empty((num_tokens * group, head_dim), np.float32)
    largest = np.empty(num_tokens * group, np.float32)
    for row in range(num_tokens * group):
        queries[row] = query[row // group, row % group] * scale
        found[row, : head_dim + 1] = 0
        found[row, head_dim + 1] = -1e30
    for start in range(begin, end, TILE):
        stop = min(end, start + TILE)
        load_tile(tile, kv, base, table, block, number, start, stop)
        for row in range(num_tokens * group):
            first, last = visible(position + row // group, window, start, stop)
            largest[row] = score(scores[row], queries[row], tile, first, last, softcap)
        load_tile(tile, kv, base + value_stride, table, block, number, start, stop)
        for row in range(num_tokens * group):
            first, last = visible(position + row // group, window, start, stop)
            result, before = found[row, :head_dim], found[row, head_dim + 1]
            if largest[row] > before:
                found[row, : head_dim + 1] *= exp2(before - largest[row])
                found[row, head_dim + 1] = largest[row]
            found[row, head_dim] += add_values(result, scores[row], tile, first, last, found[row, head_dim + 1])


@njit(fastmath=True)
def merge(out, found):
    """Result [n, group, head_dim] from `found` [splits, n · group, …]: a split counts as its largest score says."""
    num_tokens, group, head_dim = out.shape
    for row in range(num_tokens * group):
        result, largest, total = out[row // group, row % group], np.float32(-1e30), np.float32(0)
        for split in range(len(found)):
            largest = max(largest, found[split, row, head_dim + 1])
        result[:] = 0
        for split in range(len(found)):
            share = exp2(found[split, row, head_dim + 1] - largest)
            total += share * found[split, row, head_dim]
            for d in range(head_dim):
                result[d] += share * found[split, row, d]
        for d in range(head_dim):
            result[d] /= total


@compiled(parallel=True)
def attend(out, query, kv, strides, block, number, tables, starts, contexts, mask, threads):
    """The kernel. `kv` is the flat memory of a layer; `strides` are those of K/V and of a KV head in it."""
    value_stride, head_stride, num_kv_heads = strides
    num_tokens, num_heads, head_dim = query.shape
    window, group = mask[1], num_heads // num_kv_heads
    block_q = max(1, ROWS // group)

    tiles = np.empty((num_tokens // block_q + len(contexts), 2), np.int64)  # of query tokens: sequence, first token
    num_tiles, keys, longest = 0, 0, 1
    for sequence in range(len(contexts)):
        for token in range(starts[sequence], starts[sequence + 1], block_q):
            tiles[num_tiles, 0], tiles[num_tiles, 1] = sequence, token
            num_tiles, keys = num_tiles + 1, keys + contexts[sequence]
            longest = max(longest, contexts[sequence])
    split = max(MIN_SPLIT, keys * num_kv_heads // (PIECES * threads))
    num_splits = (longest + split - 1) // split
    found = np.empty((num_tiles * num_kv_heads, num_splits, block_q * group, head_dim + 2), np.float32)

    for thread in prange(threads):
        for piece in range(thread, len(found) * num_splits, threads):
            item, part = piece // num_splits, piece % num_splits
            sequence, first = tiles[item // num_kv_heads]
            last, kv_head = min(first + block_q, starts[sequence + 1]), item % num_kv_heads
            position = contexts[sequence] - starts[sequence + 1] + first
            attend_piece(
                found[item, part], query[first:last, kv_head * group : (kv_head + 1) * group],
                kv, kv_head * head_stride, value_stride, tables[sequence], block, number, position,
                max(part * split, position - window + 1), min((part + 1) * split, position + last - first), mask,
            )  # fmt: skip

    for thread in prange(threads):
        for item in range(thread, len(found), threads):
            sequence, first = tiles[item // num_kv_heads]
            last, kv_head = min(first + block_q, starts[sequence + 1]), item % num_kv_heads
            merge(out[first:last, kv_head * group : (kv_head + 1) * group], found[item])


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
    out = torch.empty_like(query) if out is None else out
    if query.shape[0] == 0:
        return out
    kv = _flat(kv_layer)
    result = out if out.dtype == torch.float32 and out.is_contiguous() else torch.empty(query.shape)
    block_stride, value_stride, head_stride = kv_layer.stride()[:3]
    _, shift, mask, factor = FORMATS[kv_layer.dtype]
    threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    with _launch:
        numba.set_num_threads(threads)
        attend(
            result.numpy(),
            query.float().contiguous().numpy(),
            kv,
            (value_stride, head_stride, kv_layer.shape[2]),
            (kv_layer.shape[3], block_stride),
            (np.int32(shift), np.int32(mask), np.float32(factor)),
            block_tables.contiguous().numpy(),
            query_start_loc.numpy(),
            seq_lens.numpy(),
            (np.float32(scale * LOG2_E), sliding_window or 1 << 40, np.float32((softcap or 0) * LOG2_E)),
            threads,
        )
    return out if result is out else out.copy_(result)


@compiled()
def scatter(kv, key, value, slots, block_stride, value_stride, head_stride, block_size):
    """Copy each token's rows, [num_tokens, num_kv_heads, head_dim], to its slot."""
    head_dim = key.shape[2]
    for token in range(len(slots)):
        if slots[token] < 0:
            continue
        base = slots[token] // block_size * block_stride + slots[token] % block_size * head_dim
        for head in range(key.shape[1]):
            at = base + head * head_stride
            kv[at : at + head_dim] = key[token, head]
            kv[at + value_stride : at + value_stride + head_dim] = value[token, head]


def write_kv(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> None:
    """As ``reference.write_kv``. Raises ValueError or TypeError if shapes, dtypes or layout do not fit."""
    check_write(key, value, kv_layer, slot_mapping)
    rows = (part.to(kv_layer.dtype).contiguous().view(FORMATS[kv_layer.dtype][0]).numpy() for part in (key, value))
    scatter(_flat(kv_layer), *rows, slot_mapping.numpy(), *kv_layer.stride()[:3], kv_layer.shape[3])


def compile_for(dtype: torch.dtype) -> float:
    """Compile for a cache of this dtype, or load what an earlier process compiled; returns the seconds it took."""
    started = time.perf_counter()
    kv_layer, one = torch.zeros((1, 2, 1, 1, 8), dtype=dtype), torch.ones(1, dtype=torch.int32)
    row = torch.zeros((1, 1, 8), dtype=dtype)
    write_kv(row, row, kv_layer, torch.zeros(1, dtype=torch.int64))
    paged_attention(row, kv_layer, one[None] - 1, torch.arange(2, dtype=torch.int32), one, scale=1.0)
    return time.perf_counter() - started


def _flat(kv_layer: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a layer as integers, from its first number to its last, other layers' in between included."""
    if kv_layer.device.type != "cpu" or kv_layer.dtype not in FORMATS:
        raise TypeError(
            f"the KV cache is {kv_layer.dtype} on {kv_layer.device}; the Numba kernel reads "
            f'{", ".join(map(str, FORMATS))} on the CPU: use kernel="torch"'
        )
    if kv_layer.stride()[3:] != (kv_layer.shape[4], 1):
        raise ValueError(
            f"the slots of a block have strides {kv_layer.stride()[3:]}; they must follow one another without gaps: "
            'use kernel="torch"'
        )
    size = sum((count - 1) * stride for count, stride in zip(kv_layer.shape, kv_layer.stride(), strict=True)) + 1
    return kv_layer.as_strided((size,), (1,)).view(FORMATS[kv_layer.dtype][0]).numpy()
