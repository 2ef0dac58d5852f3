# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Decode on CPUs, compiled by Numba: one query token for each sequence, and all of its keys.

A thread takes one piece of work after the other: a stretch of one sequence's keys, with all heads. Keys and values are
used where they lie, in their blocks, which are read one after the other:

    block_table        7              1              3            physical blocks of 4 slots
    block           ┌─ keys ──────┬─ values ────┐
                    │ head 0 │ 1  │ head 0 │ 1  │                 head 1's four keys follow those of head 0
                    └─────────────┴─────────────┘

    first walk      scores  = queries · keys           through the keys of blocks 7, 1 and 3; then a softmax of each row
    second walk     results = weights · values         through their values

Most of the time is spent waiting for memory, since no processor guesses that block 1 follows block 7. So while some
keys are used, those at the same slots of the next block are asked for. Each thread gets the same number of keys, so
that contexts are cut into stretches, whose results are merged (Flash-Decoding, Dao et al., 2023).

Where all sequences begin with the same blocks, say a system prompt, these are not read for each of them: their queries
become the rows of a tile, as those of a prompt do in `numba_prefill` (cascade attention, Ye et al., 2024).
"""

import numpy as np

from .numba_attention_parts import LOWEST, add_values, score, side_by_side
from .numba_numbers import ask_for, exp2, inner, widen
from .numba_prefill import ROWS, prefill_piece, room_of

LONGEST = 512  # keys of a stretch: their scores shall stay in the cache
ENOUGH_SEQS, ENOUGH_KEYS = 4, 128  # for what they share to be worth its own tiles
LEAST = 64  # keys of a thread: waking another costs as much as a few
ASKED_BYTES = 1024  # at once: more cannot be under way


@inner
def softmax(scores, softcap):
    """Turn all scores of a row into weights; returns their sum and the largest score."""
    largest, total = LOWEST, np.float32(0)
    if softcap:
        for k in range(len(scores)):
            scores[k] = softcap * np.tanh(scores[k] / softcap)
    for k in range(len(scores)):
        largest = max(largest, scores[k])
    for k in range(len(scores)):
        scores[k] = exp2(scores[k] - largest)
        total += scores[k]
    return total, largest


@inner
def decode_piece(found, query, kv, strides, block, table, begin, end, mask, room):
    """A query [num_heads, head_dim] over keys begin … end - 1.

    A row of `found` becomes what a head has found: the result, its sum of weights, its largest score. `room` is a
    thread's own memory for scores, queries and results; the heads of a KV head are filled up to a multiple of four.
    """
    (value_stride, head_stride, num_kv_heads), (scale, _, softcap), (scores, queries, results) = strides, mask, room
    num_heads, head_dim = query.shape
    group, num_keys = num_heads // num_kv_heads, end - begin
    at_once = max(1, ASKED_BYTES // (4 * head_dim * kv.itemsize)) * 4
    for head in range(num_heads):
        for d in range(head_dim):
            queries[head // group, head % group, d] = widen(query[head, d]) * scale
    results[:] = 0
    for walk in range(2):
        done = 0
        while done < num_keys:
            first, count = side_by_side(table, block, begin + done, end)
            first += walk * value_stride
            ahead = side_by_side(table, block, begin, end)[0] + value_stride  # the first value, after the last key
            if done + count < num_keys:
                ahead = side_by_side(table, block, begin + done + count, end)[0] + walk * value_stride
            for kv_head in range(num_kv_heads):
                for k in range(0, count, at_once):
                    offset, part = kv_head * head_stride + k, scores[kv_head, :, done + k :]
                    rows = kv[first + offset : first + offset + min(at_once, count - k)]
                    for number in range(0, rows.size, 64 // kv.itemsize):
                        ask_for(kv, (ahead + offset) * head_dim + number)
                    if walk == 0:
                        score(part, queries[kv_head], rows)
                    else:
                        add_values(results[kv_head], part, rows)
            done += count
        if walk == 0:
            for head in range(num_heads):
                weights = scores[head // group, head % group, :num_keys]
                found[head, head_dim], found[head, head_dim + 1] = softmax(weights, softcap)
    for head in range(num_heads):
        found[head, :head_dim] = results[head // group, head % group]


@inner
def shared_prefix(sequences, tables, contexts, block_size, window):
    """How many keys these sequences have in common: those of the blocks with which every block table begins.

    0 if that is too little to be worth it, if a window hides some of them, or if others stand between the sequences.
    """
    count = len(sequences)
    if count < ENOUGH_SEQS or sequences[count - 1] - sequences[0] != count - 1:
        return 0
    alike, first = 1 << 62, tables[sequences[0]]
    for sequence in sequences:
        if contexts[sequence] > window:
            return 0
        index, most = 0, min(alike, (contexts[sequence] - 1) // block_size)
        while index < most and tables[sequence, index] == first[index]:
            index += 1
        alike = index
    return alike * block_size if alike * block_size >= ENOUGH_KEYS else 0


@inner
def plan_decode(tables, starts, contexts, block_size, window, threads):
    """Who is decoded, how many keys they share, and how the others are cut into stretches and given to threads.

    Returns the sequences with one query token; how many first keys they share, and how many threads go through them;
    the stretches behind these (sequence, first key, end); with which stretch each of the sequences begins, and each
    thread. All threads have the same number of keys. A sequence begins with an empty stretch for each of the threads
    that go through what is shared, for what is found there.
    """
    sequences = np.nonzero(starts[1:] - starts[:-1] == 1)[0]
    num_seqs, total = len(sequences), 0
    shared = shared_prefix(sequences, tables, contexts, block_size, window)
    for sequence in sequences:
        total += min(contexts[sequence] - shared, window)
    share, readers = max(LEAST, -(-total // threads)), min(threads, shared // LEAST)
    stretches = np.zeros((num_seqs * (1 + readers) + total // LONGEST + threads, 3), np.int64)
    of_sequence, of_thread = np.zeros(num_seqs + 1, np.int64), np.zeros(threads + 1, np.int64)
    count, thread, left = 0, 0, share
    for number in range(num_seqs):
        sequence = sequences[number]
        begin = max(shared, contexts[sequence] - window)
        count += readers
        while begin < contexts[sequence]:
            end = min(contexts[sequence], begin + min(LONGEST, left))
            stretches[count, 0], stretches[count, 1], stretches[count, 2] = sequence, begin, end
            count, left, begin = count + 1, left - (end - begin), end
            if left == 0:
                thread, left = thread + 1, share
                of_thread[thread] = count
        of_sequence[number + 1] = count
    of_thread[thread + 1 :] = count
    return sequences, shared, readers, stretches, of_sequence, of_thread


@inner
def decode_shared(found, slots, query, kv, strides, block, table, begin, end, mask):
    """Queries [num_seqs, num_heads, head_dim] over keys begin … end - 1 that they share, into found[slot] of each."""
    (value_stride, head_stride, num_kv_heads), (scale, _, softcap) = strides, mask
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // num_kv_heads
    at_once, unbounded = max(1, ROWS // group), (scale, np.int64(1 << 62), softcap)
    rows = (at_once * group + 3) // 4 * 4
    alone, room = np.empty((rows, head_dim + 2), np.float32), room_of(rows, head_dim)
    for kv_head in range(num_kv_heads):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        keys, values = kv[kv_head * head_stride :], kv[kv_head * head_stride + value_stride :]
        for first in range(0, num_seqs, at_once):
            part = query[first : min(first + at_once, num_seqs), heads]
            prefill_piece(alone, part, keys, values, table, block, end, begin, end, unbounded, room)
            for number in range(len(part)):
                found[slots[first + number], heads] = alone[number * group : (number + 1) * group]


@inner
def decode(thread, found, plan, query, kv, strides, block, tables, starts, mask):
    """A thread's share of the plan, into `found` [stretches, num_heads, head_dim + 2]."""
    (sequences, shared, readers, stretches, of_sequence, of_thread), num_kv_heads = plan, strides[2]
    num_heads, head_dim = query.shape[1:]
    if thread < readers:
        first = starts[sequences[0]]
        queries, slots, table = query[first : first + len(sequences)], of_sequence + thread, tables[sequences[0]]
        begin, end = shared * thread // readers, shared * (thread + 1) // readers
        decode_shared(found, slots, queries, kv, strides, block, table, begin, end, mask)
    if of_thread[thread] == of_thread[thread + 1]:
        return
    padded = (num_heads // num_kv_heads + 3) // 4 * 4
    room = (
        np.zeros((num_kv_heads, padded, LONGEST), np.float32),
        np.zeros((num_kv_heads, padded, head_dim), np.float32),
        np.empty((num_kv_heads, padded, head_dim), np.float32),
    )
    for stretch in range(of_thread[thread], of_thread[thread + 1]):
        sequence, begin, end = stretches[stretch]
        if begin < end:
            one, table = query[starts[sequence]], tables[sequence]
            decode_piece(found[stretch], one, kv, strides, block, table, begin, end, mask, room)
