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

The inner loops go over the contiguous numbers of a head, which is what a compiler turns into vector code, and take four
rows at a time, so that a number that was read is used four times. A causal bound and a sliding window only say at which
key of a tile a row begins and ends; the others get (almost) no weight. Where there are fewer sequences than threads
could share, contexts are cut into stretches whose results are merged (Flash-Decoding, Dao et al., 2023).
"""

import time
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from . import numba_layer_ops
from .checks import check_attention, check_write
from .numba_numbers import HANDED_OVER_AS, LOG2_E, compiled, exp2, launch, narrow, num_threads, numbers, widen

TILE = 64  # keys at a time: with head_dim 64 a tile has 16 KiB, half of a first-level cache
ROWS = 48  # query tokens times heads of a group that share a tile
MIN_SPLIT = 256  # keys of a stretch, at least: merging costs as much as a few keys
LOWEST = np.float32(-1e30)  # a score of nothing
PIECES = 8  # of work for each thread, so that none waits long for the last


@njit(fastmath=True)
def load_tile(tile, kv, base, table, block, start, stop):
    """Copy the keys (or values) at positions start … stop - 1 out of their blocks into `tile` [TILE, head_dim]."""
    (block_size, block_stride), head_dim = block, tile.shape[1]
    floats, position, filled = tile.reshape(-1), start, 0
    while position < stop:
        slot = position % block_size
        count = min(block_size - slot, stop - position)
        size = count * head_dim
        source = base + table[position // block_size] * block_stride + slot * head_dim
        stored, target = kv[source : source + size], floats[filled : filled + size]
        for i in range(size):
            target[i] = widen(stored[i])
        position += count
        filled += size
    tile[stop - start : (stop - start + 3) // 4 * 4] = 0  # `add_values` takes four at a time


@njit(fastmath=True)
def score(scores, queries, keys, count):
    """The dot products of all rows with the first `count` keys."""
    for row in range(0, len(queries), 4):
        query0, query1, query2, query3 = queries[row], queries[row + 1], queries[row + 2], queries[row + 3]
        for k in range(count):
            key = keys[k]
            sum0 = sum1 = sum2 = sum3 = np.float32(0)
            for d in range(len(key)):
                sum0 += query0[d] * key[d]
                sum1 += query1[d] * key[d]
                sum2 += query2[d] * key[d]
                sum3 += query3[d] * key[d]
            scores[row, k], scores[row + 1, k], scores[row + 2, k], scores[row + 3, k] = sum0, sum1, sum2, sum3


@njit(fastmath=True)
def weigh(scores, result, state, first, last, softcap):
    """Turn a row's scores of the keys that it sees, first … last - 1, into weights, and the others into (almost) 0.

    `state` are the row's sum of weights and its largest score so far, to which `result` and the sum are scaled.
    """
    if first >= last:
        scores[:] = 0
        return
    if softcap:
        for k in range(first, last):
            scores[k] = softcap * np.tanh(scores[k] / softcap)
    scores[:first] = LOWEST
    scores[last:] = LOWEST
    largest, total = state[1], np.float32(0)
    for k in range(TILE):
        largest = max(largest, scores[k])
    if largest > state[1]:
        share = exp2(state[1] - largest)
        for d in range(len(result)):
            result[d] *= share
        state[0], state[1] = state[0] * share, largest
    for k in range(TILE):
        scores[k] = exp2(scores[k] - largest)
        total += scores[k]
    state[0] += total


@njit(fastmath=True)
def add_values(results, weights, values, count):
    """Add the first `count` values to the results of all rows, each as often as its weight says."""
    for row in range(0, len(results), 4):
        result0, result1, result2, result3 = results[row], results[row + 1], results[row + 2], results[row + 3]
        weight0, weight1, weight2, weight3 = weights[row], weights[row + 1], weights[row + 2], weights[row + 3]
        for k in range(0, count, 4):
            value0, value1, value2, value3 = values[k], values[k + 1], values[k + 2], values[k + 3]
            a0, a1, a2, a3 = weight0[k], weight0[k + 1], weight0[k + 2], weight0[k + 3]
            b0, b1, b2, b3 = weight1[k], weight1[k + 1], weight1[k + 2], weight1[k + 3]
            c0, c1, c2, c3 = weight2[k], weight2[k + 1], weight2[k + 2], weight2[k + 3]
            d0, d1, d2, d3 = weight3[k], weight3[k + 1], weight3[k + 2], weight3[k + 3]
            for d in range(len(result0)):
                v0, v1, v2, v3 = value0[d], value1[d], value2[d], value3[d]
                result0[d] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
                result1[d] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
                result2[d] += c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
                result3[d] += d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3


@njit(fastmath=True)
def attend_piece(found, query, kv, base, value_stride, table, block, position, begin, end, mask, room):
    """Query tokens [n, group, head_dim], the first at `position`, over keys begin … end - 1 of their KV head.

    A row of `found` becomes what it has found: the result so far, its sum of weights, its largest score. `room` is a
    thread's own memory for a tile, scores, queries and results.
    """
    (num_tokens, group, head_dim), (scale, window, softcap) = query.shape, mask
    num_rows = num_tokens * group
    padded = (num_rows + 3) // 4 * 4
    tile, scores, queries, results = room[0], room[1][:padded], room[2][:padded], room[3][:padded]
    queries[num_rows:] = 0
    results[:] = 0
    for row in range(num_rows):
        for d in range(head_dim):
            queries[row, d] = widen(query[row // group, row % group, d]) * scale
        found[row, head_dim], found[row, head_dim + 1] = 0, LOWEST
    for start in range(begin, end, TILE):
        stop = min(end, start + TILE)
        load_tile(tile, kv, base, table, block, start, stop)
        score(scores, queries, tile, stop - start)
        load_tile(tile, kv, base + value_stride, table, block, start, stop)
        for row in range(num_rows):
            here = position + row // group
            first, last = max(0, here - window + 1 - start), max(0, min(stop, here + 1) - start)
            weigh(scores[row], results[row], found[row, head_dim:], first, last, softcap)
        add_values(results, scores, tile, stop - start)
    found[:num_rows, :head_dim] = results[:num_rows]


@njit(fastmath=True)
def merge(out, found):
    """Result [n, group, head_dim] from `found` [splits, n · group, …]: a split counts as its largest score says."""
    num_tokens, group, head_dim = out.shape
    for row in range(num_tokens * group):
        result, largest, total = out[row // group, row % group], LOWEST, np.float32(0)
        for split in range(len(found)):
            largest = max(largest, found[split, row, head_dim + 1])
        for split in range(len(found)):
            share = exp2(found[split, row, head_dim + 1] - largest)
            total += share * found[split, row, head_dim]
            found[split, row, head_dim] = share
        for d in range(head_dim):
            number = np.float32(0)
            for split in range(len(found)):
                number += found[split, row, head_dim] * found[split, row, d]
            result[d] = narrow(number / total, result)


@compiled(parallel=True)
def attend(out, query, kv, strides, block, tables, starts, contexts, mask, threads):
    """The kernel. `kv` is the flat memory of a layer; `strides` are those of K/V and of a KV head in it."""
    value_stride, head_stride, num_kv_heads = strides
    num_tokens, num_heads, head_dim = query.shape
    window, group = mask[1], num_heads // num_kv_heads
    block_q = max(1, min(ROWS // group, (starts[1:] - starts[:-1]).max()))
    num_rows = (block_q * group + 3) // 4 * 4

    tiles = np.empty((num_tokens // block_q + len(contexts), 2), np.int64)  # of query tokens: sequence, first token
    num_tiles, keys, longest = 0, 0, 1
    for sequence in range(len(contexts)):
        for token in range(starts[sequence], starts[sequence + 1], block_q):
            tiles[num_tiles, 0], tiles[num_tiles, 1] = sequence, token
            num_tiles, keys = num_tiles + 1, keys + contexts[sequence]
            longest = max(longest, contexts[sequence])
    split = max(MIN_SPLIT, keys * num_kv_heads // (PIECES * threads))
    num_splits = (longest + split - 1) // split
    num_pieces = num_tiles * num_splits * num_kv_heads
    together = num_kv_heads if num_pieces >= PIECES * threads * num_kv_heads else 1  # heads lie side by side in a block
    to_merge = num_tiles * num_kv_heads if num_splits > 1 else 0
    found = np.empty((to_merge, num_splits, num_rows, head_dim + 2), np.float32)

    for thread in prange(threads):
        alone = np.empty((1, num_rows, head_dim + 2), np.float32)
        room = (
            np.empty((TILE, head_dim), np.float32), np.empty((num_rows, TILE), np.float32),
            np.empty((num_rows, head_dim), np.float32), np.empty((num_rows, head_dim), np.float32),
        )  # fmt: skip
        for turn in range(thread * together, num_pieces, threads * together):
            for piece in range(turn, min(turn + together, num_pieces)):
                stretch, kv_head = piece // num_kv_heads, piece % num_kv_heads
                tile, part = stretch // num_splits, stretch % num_splits
                sequence, first = tiles[tile]
                last, heads = min(first + block_q, starts[sequence + 1]), slice(kv_head * group, (kv_head + 1) * group)
                position = contexts[sequence] - starts[sequence + 1] + first
                attend_piece(
                    found[tile * num_kv_heads + kv_head, part] if to_merge else alone[0], query[first:last, heads],
                    kv, kv_head * head_stride, value_stride, tables[sequence], block, position,
                    max(part * split, position - window + 1), min((part + 1) * split, position + last - first),
                    mask, room,
                )  # fmt: skip
                if not to_merge:
                    merge(out[first:last, heads], alone)

    for thread in prange(threads):
        for item in range(thread, to_merge, threads):
            kv_head, (sequence, first) = item % num_kv_heads, tiles[item // num_kv_heads]
            last = min(first + block_q, starts[sequence + 1])
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
    query = query.contiguous()
    out = torch.empty_like(query) if out is None else out
    if query.shape[0] == 0:
        return out
    kv = _flat(kv_layer)
    result = out if out.is_contiguous() else torch.empty_like(query)
    block_stride, value_stride, head_stride = kv_layer.stride()[:3]
    launch(
        attend,
        numbers(result),
        numbers(query),
        kv,
        (value_stride, head_stride, kv_layer.shape[2]),
        (kv_layer.shape[3], block_stride),
        block_tables.contiguous().numpy(),
        query_start_loc.numpy(),
        seq_lens.numpy(),
        (np.float32(scale * LOG2_E), sliding_window or 1 << 40, np.float32((softcap or 0) * LOG2_E)),
        num_threads(),
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
    rows = (numbers(part.to(kv_layer.dtype).contiguous()) for part in (key, value))
    scatter(_flat(kv_layer), *rows, slot_mapping.numpy(), *kv_layer.stride()[:3], kv_layer.shape[3])


def compile_for(dtype: torch.dtype) -> float:
    """Compile for a cache of this dtype, or load what an earlier process compiled; returns the seconds it took."""
    started = time.perf_counter()
    kv_layer, one = torch.zeros((1, 2, 1, 1, 8), dtype=dtype), torch.ones(1, dtype=torch.int32)
    row = torch.zeros((1, 1, 8), dtype=dtype)
    write_kv(row, row, kv_layer, torch.zeros(1, dtype=torch.int64))
    paged_attention(row, kv_layer, one[None] - 1, torch.arange(2, dtype=torch.int32), one, scale=1.0)
    numba_layer_ops.add_rms_norm(row[0], row[0], row[0, 0], 1.0)
    numba_layer_ops.rotate(row, 1, row[0], row[0])
    numba_layer_ops.silu_and_mul(row[0])
    return time.perf_counter() - started


def _flat(kv_layer: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a layer, from its first number to its last, other layers' in between included."""
    if kv_layer.device.type != "cpu" or kv_layer.dtype not in HANDED_OVER_AS:
        raise TypeError(
            f"the KV cache is {kv_layer.dtype} on {kv_layer.device}; the Numba kernel reads "
            f'{", ".join(map(str, HANDED_OVER_AS))} on the CPU: use kernel="torch"'
        )
    if kv_layer.stride()[3:] != (kv_layer.shape[4], 1):
        raise ValueError(
            f"the slots of a block have strides {kv_layer.stride()[3:]}; they must follow one another without gaps: "
            'use kernel="torch"'
        )
    size = 1 + sum((count - 1) * stride for count, stride in zip(kv_layer.shape, kv_layer.stride(), strict=True))
    return numbers(kv_layer.as_strided((size,), (1,)))
