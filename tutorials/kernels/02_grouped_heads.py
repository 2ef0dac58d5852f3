"""Step 2: the heads of a group as rows of one matrix product. Each key is loaded once.

The grid, for 3 sequences and 4 query heads, of which two share a KV head:

                  KV head 0   KV head 1           a program       one query token, all heads of a group
    sequence 0    ┌───────┐   ┌───────┐           in its loop     TILE keys, wherever they lie
    sequence 1    │       │   │       │
    sequence 2    └───────┘   └───────┘
    reads          KV head 0   KV head 1          ← once

One tile of the loop, 8 keys out of blocks of 4. Each lane has a position of its own and asks the table for its block,
so a tile need not end where a block does:

    position      0    1    2    3    4    5    6    7        scores = query · keyᵀ, one tl.dot
    table entry   0    0    0    0    1    1    1    1
    block         7    7    7    7    2    2    2    2        row 0   head 0  ┌────── TILE ──────┐
    slot          0    1    2    3    0    1    2    3        row 1   head 1  │                  │
                                                              row …   padding └──────────────────┘

What it fixes: a key serves all heads of its group. ``tl.dot`` runs on the matrix units. The tile has a size that suits
the hardware, and the block a size that suits the memory.

What is left: tl.dot wants 16 rows and a decode has as many as the group has heads, so most rows are padding. They cost
nothing that matters, since decode waits for memory; but a prompt has tokens that could be such rows.
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
def grouped_heads_kernel(
    out_ptr,  # [num_seqs, num_heads, head_dim]
    query_ptr,  # like out
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    block_tables_ptr,  # int32 [num_seqs, max_blocks]
    seq_lens_ptr,  # int32 [num_seqs]
    scale,  # with log2(e) in it
    max_blocks,
    GROUP: tl.constexpr,  # query heads per KV head
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows, at least GROUP
    TILE: tl.constexpr,
):
    """Attention of one query token and GROUP heads."""
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    context = tl.load(seq_lens_ptr + seq)
    row = tl.arange(0, BLOCK_M)[:, None]
    dim = tl.arange(0, HEAD_DIM)[None, :]
    row_used = row < GROUP
    row_offset = ((seq * NUM_KV_HEADS + kv_head) * GROUP + row) * HEAD_DIM
    query = tl.load(query_ptr + (row_offset + dim), mask=row_used, other=0.0)

    row_max = tl.full((BLOCK_M, 1), -1.0e30, tl.float32)
    row_sum = tl.full((BLOCK_M, 1), 0.0, tl.float32)
    acc = tl.full((BLOCK_M, HEAD_DIM), 0.0, tl.float32)
    for tile_begin in range(0, context, TILE):
        position = tile_begin + tl.arange(0, TILE)
        inside = position < context
        block = tl.load(block_tables_ptr + seq * max_blocks + position // BLOCK_SIZE, mask=inside, other=0)
        slot_row = (block.to(tl.int64) * 2 * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + position % BLOCK_SIZE
        key_ptrs = kv_ptr + slot_row[:, None] * HEAD_DIM + dim
        key = tl.load(key_ptrs, mask=inside[:, None], other=0.0)
        value = tl.load(key_ptrs + NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM, mask=inside[:, None], other=0.0)

        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1, keep_dims=True))
        weights = tl.exp2(scores - new_max)
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1, keep_dims=True)
        acc = tl.dot(weights.to(value.dtype), value, acc * shrink, input_precision="ieee")
        row_max = new_max
    tl.store(out_ptr + (row_offset + dim), acc / row_sum, mask=row_used)


def attend(call: AttentionCall) -> Tensor:
    """Attention of a batch that has one query token in each sequence; of `call.config` the rows and the tile count."""
    check(call, one_query_each=True)
    config = call.config or small_tiles(call.group)
    num_kv_heads, block_size, head_dim = call.kv_layer.shape[2:]
    out = torch.empty_like(call.query)
    with launching(grouped_heads_kernel, out.device):
        grouped_heads_kernel[(len(call.seq_lens), num_kv_heads)](
            out,
            call.query,
            call.kv_layer,
            call.block_tables,
            call.seq_lens,
            call.scale * LOG2_E,
            call.block_tables.shape[1],
            GROUP=call.group,
            NUM_KV_HEADS=num_kv_heads,
            BLOCK_SIZE=block_size,
            HEAD_DIM=head_dim,
            BLOCK_M=config.block_m,
            TILE=config.tile,
        )
    return out


def work(shape: Shape, config: LaunchConfig) -> Work:
    """Every KV head's keys and values are loaded once; block_m rows are multiplied with whole tiles."""
    context = sum(shape.seq_lens)
    lanes = sum(-(-length // config.tile) * config.tile for length in shape.seq_lens)
    rows = len(shape.seq_lens) * shape.num_heads
    return Work(
        programs=len(shape.seq_lens) * shape.num_kv_heads,
        loaded=(rows + 2 * context * shape.num_kv_heads) * shape.vector,
        stored=rows * shape.vector,
        flops=4 * config.block_m * lanes * shape.num_kv_heads * shape.head_dim,
    )
