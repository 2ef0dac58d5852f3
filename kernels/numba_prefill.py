# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of sequences with several query tokens on CPUs, compiled by Numba: prompts, and chunks of them.

A thread takes one piece of work after the other: a few query tokens of one sequence, with all the heads that share a KV
head, and a stretch of its keys. It walks that stretch a tile at a time:

    block_table        7              1              3            physical blocks of 4 slots
    keys         │ 0  1  2  3 │ 4  5  6  7 │ 8  9  .  . │
                 └──────── tile 0 ─────────┘└── tile 1 ──┘        copied side by side into the thread's own cache, as
                                                                  float32 whatever the KV cache holds

    for each row (a token and a head):   scores  = row · keys     a softmax that goes on from tile to tile: the largest
                                         result += weights · values       score so far, the sum of weights, the result

A causal bound and a sliding window only say at which key of a tile a row begins and ends; the others get (almost) no
weight.
"""

import numpy as np

from .numba_attention_parts import LOWEST, add_values, merge, score, side_by_side
from .numba_numbers import exp2, inner, widen

TILE = 64  # keys at a time: with head_dim 64 a tile has 16 KiB, half of a first-level cache
ROWS = 48  # query tokens times heads of a group that share a tile
MIN_SPLIT = 256  # keys of a stretch, at least: merging costs as much as a few keys
PIECES = 8  # of work for each thread, so that none waits long for the last


@inner
def load_tile(tile, rows, table, block, start, stop):
    """Copy the keys (or values) at positions start … stop - 1 out of their blocks into `tile` [TILE, head_dim]."""
    position = start
    while position < stop:
        first, count = side_by_side(table, block, position, stop)
        stored, target = rows[first : first + count].reshape(-1), tile[position - start :].reshape(-1)
        for i in range(len(stored)):
            target[i] = widen(stored[i])
        position += count


@inner
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
    for k in range(len(scores)):
        largest = max(largest, scores[k])
    if largest > state[1]:
        share = exp2(state[1] - largest)
        for d in range(len(result)):
            result[d] *= share
        state[0], state[1] = state[0] * share, largest
    for k in range(len(scores)):
        scores[k] = exp2(scores[k] - largest)
        total += scores[k]
    state[0] += total


@inner
def prefill_piece(found, query, keys, values, table, block, position, begin, end, mask, room):
    """Query tokens [n, group, head_dim], the first at `position`, over keys begin … end - 1.

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
        width = (stop - start + 15) // 16 * 16  # whole vectors
        load_tile(tile, keys, table, block, start, stop)
        score(scores, queries, tile[: stop - start])
        for row in range(num_rows):
            here = position + row // group
            first, last = max(0, here - window + 1 - start), max(0, min(stop, here + 1) - start)
            weigh(scores[row, :width], results[row], found[row, head_dim:], first, last, softcap)
        load_tile(tile, values, table, block, start, stop)
        add_values(results, scores, tile[: stop - start])
    found[:num_rows, :head_dim] = results[:num_rows]


@inner
def room_of(num_rows, head_dim):
    """A thread's own memory for `prefill_piece`, which is not filled."""
    rows = np.empty((num_rows, head_dim), np.float32), np.empty((num_rows, head_dim), np.float32)
    return np.empty((TILE, head_dim), np.float32), np.empty((num_rows, TILE), np.float32), *rows


@inner
def plan_prefill(starts, contexts, group, num_kv_heads, threads):
    """How the sequences with more than one query token are cut into pieces.

    Returns the tiles of query tokens (sequence, first token); how many tokens, at most; how many stretches of keys, and
    how long; how many KV heads a thread takes one after the other, since they lie side by side in a block.
    """
    block_q = max(1, min(ROWS // group, (starts[1:] - starts[:-1]).max()))
    tiles = np.empty((starts[-1] // block_q + len(contexts), 2), np.int64)
    num_tiles, keys, longest = 0, 0, 1
    for sequence in range(len(contexts)):
        if starts[sequence + 1] - starts[sequence] > 1:
            for token in range(starts[sequence], starts[sequence + 1], block_q):
                tiles[num_tiles, 0], tiles[num_tiles, 1] = sequence, token
                num_tiles, keys = num_tiles + 1, keys + contexts[sequence]
            longest = max(longest, contexts[sequence])
    split = max(MIN_SPLIT, keys * num_kv_heads // (PIECES * threads))
    num_splits = (longest + split - 1) // split
    together = num_kv_heads if num_tiles * num_splits >= PIECES * threads else 1
    return tiles[:num_tiles], block_q, num_splits, split, together


@inner
def prefill(thread, threads, out, found, plan, query, kv, strides, block, tables, starts, contexts, mask):
    """A thread's share of the plan, into `out`, or into `found` [tiles · KV heads, splits, …] if keys are split."""
    (tiles, block_q, num_splits, split, together), (value_stride, head_stride, num_kv_heads) = plan, strides
    if not len(tiles):
        return
    num_heads, head_dim = query.shape[1:]
    window, group = mask[1], num_heads // num_kv_heads
    num_rows, num_pieces = (block_q * group + 3) // 4 * 4, len(tiles) * num_splits * num_kv_heads
    alone, room = np.empty((1, num_rows, head_dim + 2), np.float32), room_of(num_rows, head_dim)
    for turn in range(thread * together, num_pieces, threads * together):
        for piece in range(turn, min(turn + together, num_pieces)):
            stretch, kv_head = piece // num_kv_heads, piece % num_kv_heads
            tile, part = stretch // num_splits, stretch % num_splits
            sequence, first = tiles[tile]
            last, heads = min(first + block_q, starts[sequence + 1]), slice(kv_head * group, (kv_head + 1) * group)
            position = contexts[sequence] - starts[sequence + 1] + first
            prefill_piece(
                alone[0] if num_splits == 1 else found[tile * num_kv_heads + kv_head, part], query[first:last, heads],
                kv[kv_head * head_stride :], kv[kv_head * head_stride + value_stride :], tables[sequence], block,
                position, max(part * split, position - window + 1), min((part + 1) * split, position + last - first),
                mask, room,
            )  # fmt: skip
            if num_splits == 1:
                merge(out[first:last, heads], alone)
