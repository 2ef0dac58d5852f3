"""Step 4: a long context is split among several programs, and a second launch merges what they found.

The grid has a third direction. For a decode of one sequence with 40 keys in tiles of 8, and 4 splits:

                      split 0      split 1      split 2      split 3
    tile 0  KV head 0 ┌──────────┐ ┌──────────┐ ┌──────────┐ ┌─────────┐       a program       BLOCK_Q tokens × GROUP
            KV head 1 │ 0 … 15   │ │ 16 … 31  │ │ 32 … 39  │ │ no key  │                       heads, as in step 3
                      └────┬─────┘ └────┬─────┘ └────┬─────┘ └────┬────┘       in its loop     TILE keys of its split
                        max sum acc  max sum acc  max sum acc  −1e30  0  0
                           └────────────┴──────┬─────┴────────────┘
                                            result                             second launch: one program for each
                                                                               token and head

A program cannot divide yet: it knows only a part of the sum. So it leaves the state of its running softmax, the largest
score, the sum and the weighted values. Two such states merge as two tiles do in the loop: the one with the smaller
maximum is scaled down first. ``merge_splits`` does it for all splits of a row; it is the engine's own.

What it fixes: one sequence with a long context keeps a whole GPU busy.

What it costs: states are float32, are stored and loaded again, and the queries are loaded once for each split. Over
32,000 keys that is nothing; over 100 it is not worth a second launch. Somebody has to choose: that is the last step.
"""

import torch
import triton
import triton.language as tl
from door import LOG2_E, check, small_tiles
from roofline import Shape, Work
from torch import Tensor

from pagelens.kernels.availability import launching
from pagelens.kernels.launch import LaunchConfig
from pagelens.kernels.merge_splits import merge_splits
from pagelens.kernels.walk import AttentionCall


@triton.jit
def split_context_kernel(
    acc_ptr,  # float32 [num_tokens, num_heads, NUM_SPLITS, head_dim], not yet divided
    split_max_ptr,  # float32 [num_tokens, num_heads, NUM_SPLITS]
    split_sum_ptr,
    query_ptr,  # [num_tokens, num_heads, head_dim]
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
    NUM_SPLITS: tl.constexpr,
):
    """What BLOCK_Q query tokens and GROUP heads find in one split of the context."""
    query_tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
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
    keys_per_split = (keys_end // (TILE * NUM_SPLITS) + 1) * TILE  # whole tiles; the last splits may get none
    keys_begin = split * keys_per_split
    keys_end = tl.minimum(keys_begin + keys_per_split, keys_end)

    row = tl.arange(0, BLOCK_M)[:, None]
    dim = tl.arange(0, HEAD_DIM)[None, :]
    row_query = first_query + row // GROUP
    row_used = (row < BLOCK_Q * GROUP) & (row_query < query_len)  # with a group of 3, row 15 is the next program's
    row_position = context - query_len + row_query
    row_head = kv_head * GROUP + row % GROUP
    row_number = (query_start + row_query) * NUM_KV_HEADS * GROUP + row_head
    query = tl.load(query_ptr + (row_number * HEAD_DIM + dim), mask=row_used, other=0.0)

    row_max = tl.full((BLOCK_M, 1), -1.0e30, tl.float32)
    row_sum = tl.full((BLOCK_M, 1), 0.0, tl.float32)
    acc = tl.full((BLOCK_M, HEAD_DIM), 0.0, tl.float32)
    for tile_begin in range(keys_begin, keys_end, TILE):
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
    state = row_number * NUM_SPLITS + split
    tl.store(split_max_ptr + state, row_max, mask=row_used)
    tl.store(split_sum_ptr + state, row_sum, mask=row_used)
    tl.store(acc_ptr + (state * HEAD_DIM + dim), acc, mask=row_used)


def attend(call: AttentionCall) -> Tensor:
    """Attention of a batch, in `call.config.num_splits` splits (a power of two), 4 without one."""
    check(call)
    config = call.config or small_tiles(call.group, num_splits=4)
    num_tokens, num_heads, head_dim = call.query.shape
    num_kv_heads, block_size = call.kv_layer.shape[2:4]
    states = (num_tokens, num_heads, config.num_splits)
    acc = call.query.new_empty((*states, head_dim), dtype=torch.float32)
    split_max, split_sum = call.query.new_empty((2, *states), dtype=torch.float32)
    out = torch.empty_like(call.query)
    with launching(split_context_kernel, out.device):
        split_context_kernel[config.grid(num_tokens, len(call.seq_lens), num_kv_heads)](
            acc,
            split_max,
            split_sum,
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
            NUM_SPLITS=config.num_splits,
        )
        merge_splits(out, acc, split_max, split_sum)
    return out


def work(shape: Shape, config: LaunchConfig) -> Work:
    """The keys of step 3; in addition each split loads the queries and stores states, and the merge loads those."""
    tokens, splits = sum(shape.query_lens), config.num_splits
    lanes = keys = 0
    for _, end in shape.query_tiles(config.block_q):
        per_split = (end // (config.tile * splits) + 1) * config.tile
        for begin in range(0, end, per_split):
            keys += min(per_split, end - begin)
            lanes += -(-min(per_split, end - begin) // config.tile) * config.tile
    states = tokens * shape.num_heads * splits * (shape.head_dim + 2) * 4
    return Work(
        programs=(tokens // config.block_q + len(shape.seq_lens)) * shape.num_kv_heads * splits,
        loaded=(tokens * shape.num_heads * splits + 2 * keys * shape.num_kv_heads) * shape.vector + states,
        stored=tokens * shape.num_heads * shape.vector + states,
        flops=4 * config.block_m * lanes * shape.num_kv_heads * shape.head_dim,
    )
