"""Step 3: any number of query tokens in a sequence. Prefill, a chunk of it and decode in one launch.

The batch is flat: the query tokens of all sequences lie one after the other, and those of a sequence are the last
positions of its context. A program takes BLOCK_Q of them, so a sequence has ⌈query_len / BLOCK_Q⌉ programs for each KV
head. To know their number the host would have to wait for the lengths, so sequence i starts at tile number
query_start_loc[i] // BLOCK_Q + i, which leaves each room enough. The grid, with BLOCK_Q 4:

    query tokens            0 1 2 3   4          5          6 7 8                        5, 1 and 3 of them
                          ┌─────────┬─────────┬─────────┬─────────┬─────────┐
    KV head 0             │ seq 0   │ seq 0   │ seq 1   │ seq 2   │ nothing │            9 // 4 + 3 = 5 tiles
    KV head 1             │         │         │         │         │         │
                          └─────────┴─────────┴─────────┴─────────┴─────────┘
    a program             BLOCK_Q query tokens × the heads of a group: row m is token m // GROUP, head m % GROUP
    in its loop           TILE keys, up to the last one that any of its tokens may see

Rows see different keys now. A tile that crosses the diagonal is masked, and the loop ends there:

    keys           0   1   2   3   4   5   6   7
    token 4        ■   ■   ■   ■   ■   ·   ·   ·        · is computed and thrown away
    token 5        ■   ■   ■   ■   ■   ■   ·   ·
    token 6        ■   ■   ■   ■   ■   ■   ■   ·

What it fixes: a prompt needs no kernel of its own. A key that was loaded serves BLOCK_Q tokens, and what was padding
in step 2 does work: only now are the matrix units worth their name.

What is left: a decode of one sequence is one program for each KV head, however long its context. A GPU has room for
hundreds.
"""

import torch
import triton
import triton.language as tl
from door import LOG2_E, check, small_tiles
from roofline import Shape, Work
from torch import Tensor

from pagelens.kernels.availability import launching
from pagelens.kernels.launch import LaunchConfig
from pagelens.kernels.walk import AttentionCall


@triton.jit
def any_query_length_kernel(
    out_ptr,  # [num_tokens, num_heads, head_dim]
    query_ptr,  # like out
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    block_tables_ptr,  # int32 [num_seqs, max_blocks]
    query_start_loc_ptr,  # int32 [num_seqs + 1]
    seq_lens_ptr,  # int32 [num_seqs]
    scale,  # with log2(e) in it
    num_seqs,
    max_blocks,
    GROUP: tl.constexpr,  # query heads per KV head
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows, at least BLOCK_Q · GROUP
    BLOCK_Q: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attention of BLOCK_Q query tokens and GROUP heads."""
    query_tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = 0  # the last sequence whose tiles start at or before this one, by halving
    beyond = num_seqs
    while beyond - seq > 1:
        middle = (seq + beyond) // 2
        if tl.load(query_start_loc_ptr + middle) // BLOCK_Q + middle <= query_tile:
            seq = middle
        else:
            beyond = middle
    query_start = tl.load(query_start_loc_ptr + seq)
    query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
    first_query = (query_tile - query_start // BLOCK_Q - seq) * BLOCK_Q
    if first_query >= query_len:
        return
    context = tl.load(seq_lens_ptr + seq)
    keys_end = tl.minimum(context - query_len + first_query + BLOCK_Q, context)

    row = tl.arange(0, BLOCK_M)[:, None]
    dim = tl.arange(0, HEAD_DIM)[None, :]
    row_query = first_query + row // GROUP
    row_used = (row < BLOCK_Q * GROUP) & (row_query < query_len)  # with a group of 3, row 15 is the next program's
    row_position = context - query_len + row_query
    row_head = kv_head * GROUP + row % GROUP
    row_offset = ((query_start + row_query) * NUM_KV_HEADS * GROUP + row_head) * HEAD_DIM
    query = tl.load(query_ptr + (row_offset + dim), mask=row_used, other=0.0)

    row_max = tl.full((BLOCK_M, 1), -1.0e30, tl.float32)
    row_sum = tl.full((BLOCK_M, 1), 0.0, tl.float32)
    acc = tl.full((BLOCK_M, HEAD_DIM), 0.0, tl.float32)
    for tile_begin in range(0, keys_end, TILE):
        position = tile_begin + tl.arange(0, TILE)
        inside = position < keys_end
        block = tl.load(block_tables_ptr + seq * max_blocks + position // BLOCK_SIZE, mask=inside, other=0)
        slot_row = (block.to(tl.int64) * 2 * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + position % BLOCK_SIZE
        key_ptrs = kv_ptr + slot_row[:, None] * HEAD_DIM + dim
        key = tl.load(key_ptrs, mask=inside[:, None], other=0.0)
        value = tl.load(key_ptrs + NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM, mask=inside[:, None], other=0.0)

        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(inside[None, :] & (position[None, :] <= row_position), scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1, keep_dims=True))
        weights = tl.exp2(scores - new_max)
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1, keep_dims=True)
        acc = tl.dot(weights.to(value.dtype), value, acc * shrink, input_precision="ieee")
        row_max = new_max
    tl.store(out_ptr + (row_offset + dim), acc / row_sum, mask=row_used)


def attend(call: AttentionCall) -> Tensor:
    """Attention of a batch with any number of query tokens in each sequence."""
    check(call)
    config = call.config or small_tiles(call.group)
    num_kv_heads, block_size, head_dim = call.kv_layer.shape[2:]
    out = torch.empty_like(call.query)
    with launching(any_query_length_kernel, out.device):
        any_query_length_kernel[config.grid(len(out), len(call.seq_lens), num_kv_heads)[:2]](
            out,
            call.query,
            call.kv_layer,
            call.block_tables,
            call.query_start_loc,
            call.seq_lens,
            call.scale * LOG2_E,
            len(call.seq_lens),
            call.block_tables.shape[1],
            GROUP=call.group,
            NUM_KV_HEADS=num_kv_heads,
            BLOCK_SIZE=block_size,
            HEAD_DIM=head_dim,
            BLOCK_M=config.block_m,
            BLOCK_Q=config.block_q,
            TILE=config.tile,
        )
    return out


def work(shape: Shape, config: LaunchConfig) -> Work:
    """Each program loads the keys up to its last token; a long prompt's first keys are loaded by all its programs."""
    tokens, tiles = sum(shape.query_lens), list(shape.query_tiles(config.block_q))
    lanes = sum(-(-keys // config.tile) * config.tile for _, keys in tiles)
    keys = sum(keys for _, keys in tiles)
    return Work(
        programs=(tokens // config.block_q + len(shape.seq_lens)) * shape.num_kv_heads,
        loaded=(tokens * shape.num_heads + 2 * keys * shape.num_kv_heads) * shape.vector,
        stored=tokens * shape.num_heads * shape.vector,
        flops=4 * config.block_m * lanes * shape.num_kv_heads * shape.head_dim,
    )
