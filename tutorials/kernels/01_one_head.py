"""Step 1: one query, one head. A program walks one block table, block by block.

The grid, for 3 sequences and 4 query heads, of which two share a KV head:

                  head 0   head 1   head 2   head 3          a program       one query token, one head
    sequence 0    ┌─────┐  ┌─────┐  ┌─────┐  ┌─────┐         in its loop     one block of its sequence
    sequence 1    │     │  │     │  │     │  │     │
    sequence 2    └─────┘  └─────┘  └─────┘  └─────┘
    reads          KV head 0         KV head 1               ← every key and value comes twice, once for each program

One block of the loop, with block_size 4:

    table    [7, 2, 9]          key of block 2                    query · key
                 ↓              ┌──────── head_dim ────────┐
             logical 1    slot 0│                          │       score 4     running max, running sum,
                          slot 1│                          │       score 5     and the sum of values,
                          slot 2│                          │       score 6     weighted by 2^(score − max)
                          slot 3└──────────────────────────┘       score 7

What is good about it: it is the whole idea of paged attention. A block may lie anywhere; nothing is gathered first.

What is bad about it: the heads of a group each load the same keys; nothing is a matrix product, so the matrix units
idle; a block is the tile, however small; and a sequence has one query token, so it can only decode.
"""

import torch
import triton
import triton.language as tl
from door import LOG2_E, check
from roofline import Shape, Work
from torch import Tensor

from pagelens.kernels.availability import launching
from pagelens.kernels.walk import AttentionCall


@triton.jit
def one_head_kernel(
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
):
    """Attention of one query token and one head."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    context = tl.load(seq_lens_ptr + seq)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    dim = tl.arange(0, HEAD_DIM)[None, :]
    row = (seq * NUM_KV_HEADS * GROUP + head) * HEAD_DIM + dim
    query = tl.load(query_ptr + row).to(tl.float32)

    row_max = tl.full((1, 1), -1.0e30, tl.float32)
    row_sum = tl.full((1, 1), 0.0, tl.float32)
    acc = tl.full((1, HEAD_DIM), 0.0, tl.float32)
    for index in range(0, tl.cdiv(context, BLOCK_SIZE)):
        block = tl.load(block_tables_ptr + seq * max_blocks + index).to(tl.int64)
        used = index * BLOCK_SIZE + slot < context  # the last block may not be full
        key_ptrs = kv_ptr + ((block * 2 * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + slot) * HEAD_DIM + dim
        key = tl.load(key_ptrs, mask=used, other=0.0).to(tl.float32)
        value = tl.load(key_ptrs + NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM, mask=used, other=0.0).to(tl.float32)

        scores = tl.where(used, tl.sum(query * key, 1, keep_dims=True) * scale, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 0, keep_dims=True))
        weights = tl.exp2(scores - new_max)
        shrink = tl.exp2(row_max - new_max)  # a larger maximum scales the old sums down
        row_sum = row_sum * shrink + tl.sum(weights, 0, keep_dims=True)
        acc = acc * shrink + tl.sum(weights * value, 0, keep_dims=True)
        row_max = new_max
    tl.store(out_ptr + row, acc / row_sum)


def attend(call: AttentionCall) -> Tensor:
    """Attention of a batch that has one query token in each sequence; `block_size` is a power of two."""
    check(call, one_query_each=True)
    num_kv_heads, block_size, head_dim = call.kv_layer.shape[2:]
    if block_size & (block_size - 1):
        raise ValueError(
            f"block_size is {block_size}; here a tile is a block, so a power of two: climb to the next step"
        )
    out = torch.empty_like(call.query)
    with launching(one_head_kernel, out.device):
        one_head_kernel[(len(call.seq_lens), call.query.shape[1])](
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
        )
    return out


def work(shape: Shape) -> Work:
    """Every head loads every key and value of its sequence, and multiplies whole blocks, by vector instructions."""
    context = sum(shape.seq_lens)
    slots = sum(-(-length // shape.block_size) * shape.block_size for length in shape.seq_lens)
    rows = len(shape.seq_lens) * shape.num_heads
    return Work(
        programs=rows,
        loaded=(rows + 2 * context * shape.num_heads) * shape.vector,
        stored=rows * shape.vector,
        flops=4 * slots * shape.num_heads * shape.head_dim,
        matrix_units=False,
    )
