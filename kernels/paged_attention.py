# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Paged attention in Triton: one kernel for prefill, chunks of it, and decode.

**A program** takes a few query tokens of one sequence, for the query heads that share one KV head, and walks over the
keys those tokens may see. For each tile of keys it looks up where they lie, loads them and the values, and keeps a
running softmax. ``reference.py`` shows the result it must have, ``launch.LaunchConfig`` the shape of its tiles.

**The grid.** Sequence i has ⌈query_len / block_q⌉ tiles of query tokens. Numbering the tiles of all sequences without a
gap needs every length on the host, so the numbering has gaps: the tiles of sequence i start at number

    query_start_loc[i] // block_q + i                                           (block_q = 4)

    sequence           0: 5 tokens         1: 1 token    2: 3 tokens
    query_start_loc    0                   5             6            9
    tiles start at     0                   2             3
    tile number        0         1         2             3         4           ← 9 // 4 + 3 = 5 in all
    tokens             0–3       4         5             6–8       none: returns at once

which leaves each sequence room enough, as ⌊b/q⌋ − ⌊a/q⌋ + 1 ≥ ⌈(b − a)/q⌉, and makes num_tokens // block_q + num_seqs
tiles in all. A program finds its sequence by binary search: the last one that starts at or before the program's number.
(vLLM's unified kernel numbers its tiles the same way.)

**The running softmax.** Each row carries the largest score so far (row_max), the sum of exp2(score − row_max), and that
sum weighted by values (acc). A tile with a larger maximum scales the old sums down. ``scale`` has log2(e) in it, since
exp2 is what the hardware has. row_max starts at −1e30 and not at −∞: then a row that sees no key in a tile adds
exp2(−∞ − row_max) = 0, and no −∞ − −∞ = NaN arises.

Sources: Kwon et al., SOSP 2023, §4.1 (paging); Dao et al., FlashAttention, 2022, §3.1 (running softmax); Dao et al.,
"Flash-Decoding for long-context inference", 2023 (splits).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# tl.max and tl.sum are jitted functions, and for each call of one the interpreter patches triton.language again. These
# are the two combiners inside them: tl.reduce with one of them is a builtin, compiled as well as interpreted.
from triton.language.standard import _elementwise_max as larger
from triton.language.standard import _sum_combine as plus

from .availability import is_interpreted, launching
from .checks import check_attention
from .launch import LaunchConfig, choose_launch, next_power_of_two
from .merge_splits import merge_splits

LOG2_E = 1.4426950408889634


@triton.jit
def paged_attention_kernel(
    out_ptr,  # like query; when split: float32 [num_tokens, num_heads, NUM_SPLITS, head_dim], not yet divided
    split_max_ptr,  # float32 [num_tokens, num_heads, NUM_SPLITS]; unused when not split
    split_sum_ptr,
    query_ptr,  # [num_tokens, num_heads, head_dim]
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    block_tables_ptr,  # int32 [num_seqs, max_blocks]
    query_start_loc_ptr,  # int32 [num_seqs + 1]
    seq_lens_ptr,  # int32 [num_seqs]
    scale,  # with log2(e) in it
    num_seqs,
    out_token_stride: tl.constexpr,
    out_head_stride: tl.constexpr,
    query_token_stride: tl.constexpr,
    query_head_stride: tl.constexpr,
    kv_block_stride: tl.constexpr,
    kv_kv_stride: tl.constexpr,
    kv_head_stride: tl.constexpr,
    kv_slot_stride: tl.constexpr,
    table_stride,  # max_blocks; not a constant of the compiled kernel, since it differs from batch to batch
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per KV head
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,  # the next power of two
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: no sliding window
    SOFTCAP: tl.constexpr,  # 0: none; with log2(e) in it, as scale
    BLOCK_M: tl.constexpr,  # the rest: see LaunchConfig
    BLOCK_Q: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Attention of BLOCK_Q query tokens × GROUP heads over one split of their context."""
    query_tile = tl.program_id(0)
    kv_head = tl.program_id(1)

    # Which sequence: the last one whose tiles start at or before this tile.
    seq = 0
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

    # Which positions: the queries are the last query_len positions of the context.
    context = tl.load(seq_lens_ptr + seq)
    first_position = context - query_len + first_query
    keys_begin = 0
    if WINDOW > 0:
        keys_begin = tl.maximum(first_position - WINDOW + 1, 0)
    keys_end = tl.minimum(first_position + BLOCK_Q, context)

    # Rows, as a column: token 0 with each head of the group, token 1 with each head, …
    # With a group of 3 and 16 rows, row 15 would be token 5, which is the next program's: rows past BLOCK_Q · GROUP
    # store nothing.
    row = tl.arange(0, BLOCK_M)[:, None]
    dim = tl.arange(0, HEAD_DIM_PADDED)[None, :]
    row_query = first_query + row // GROUP
    row_token = (query_start + row_query).to(tl.int64)
    row_head = kv_head * GROUP + row % GROUP
    row_used = (row < BLOCK_Q * GROUP) & (row_query < query_len)
    row_position = tl.minimum(context - query_len + row_query, keys_end - 1)  # past the last query: its position again
    dim_used = dim < HEAD_DIM
    query_offset = row_token * query_token_stride + row_head * query_head_stride
    query = tl.load(query_ptr + (query_offset + dim), mask=row_used & dim_used, other=0.0)

    last_key = row_position
    if NUM_SPLITS > 1:  # this program's share of the keys, whole tiles; the last programs may get none
        keys_per_split = ((keys_end - keys_begin) // (TILE * NUM_SPLITS) + 1) * TILE
        keys_begin += tl.program_id(2) * keys_per_split
        keys_end = tl.minimum(keys_begin + keys_per_split, keys_end)
        last_key = tl.minimum(row_position, keys_end - 1)

    row_max = tl.full((BLOCK_M, 1), -1.0e30, tl.float32)
    row_sum = tl.full((BLOCK_M, 1), 0.0, tl.float32)
    acc = tl.full((BLOCK_M, HEAD_DIM_PADDED), 0.0, tl.float32)
    table_ptr = block_tables_ptr + tl.cast(seq, tl.int64) * table_stride
    keys_ptr = kv_ptr + kv_head.to(tl.int64) * kv_head_stride
    for tile_begin in range(keys_begin, keys_end, TILE):
        # The walk: each lane has a position, finds its block in the table, and its slot in the block.
        position = tile_begin + tl.arange(0, TILE)
        inside = position < keys_end
        block = tl.load(table_ptr + position // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot_offset = block * kv_block_stride + position % BLOCK_SIZE * kv_slot_stride
        key_ptrs = keys_ptr + slot_offset[:, None] + dim
        loaded = inside[:, None] & dim_used
        key = tl.load(key_ptrs, mask=loaded, other=0.0)
        value = tl.load(key_ptrs + kv_kv_stride, mask=loaded, other=0.0)

        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SOFTCAP > 0:  # SOFTCAP · tanh(scores / SOFTCAP); tanh(x) = 1 - 2 / (1 + e^2x)
            scores = SOFTCAP - 2 * SOFTCAP / (1 + tl.exp(scores * (2 / SOFTCAP)))
        visible = position[None, :] <= last_key
        if WINDOW > 0:
            visible = visible & (position[None, :] > row_position - WINDOW)
        scores = tl.where(visible, scores, -float("inf"))

        new_max = tl.maximum(row_max, tl.reduce(scores, 1, larger, keep_dims=True))
        weights = tl.exp2(scores - new_max)
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.reduce(weights, 1, plus, keep_dims=True)
        acc = tl.dot(weights.to(value.dtype), value, acc * shrink, input_precision="ieee")
        row_max = new_max

    out_offset = row_token * out_token_stride + row_head * out_head_stride
    if NUM_SPLITS > 1:
        out_offset += tl.program_id(2) * HEAD_DIM
        split = (row_token * NUM_HEADS + row_head) * NUM_SPLITS + tl.program_id(2)
        tl.store(split_max_ptr + split, row_max, mask=row_used)
        tl.store(split_sum_ptr + split, row_sum, mask=row_used)
    else:
        acc = acc / row_sum
    tl.store(out_ptr + (out_offset + dim), acc, mask=row_used & dim_used)


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
    config: LaunchConfig | None = None,
) -> Tensor:
    """Causal attention of a flat batch of query tokens over keys and values that lie in blocks.

    The arguments are those of ``reference.paged_attention``, which explains them with pictures. On a GPU nothing here
    waits for it: the lengths stay there.

    Args:
        query: [num_tokens, num_heads, head_dim], float32, float16 or bfloat16, head_dim contiguous.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], same dtype, head_dim contiguous.
        block_tables: int32 [num_seqs, max_blocks]; unused entries are never read.
        query_start_loc: int32 [num_seqs + 1].
        seq_lens: int32 [num_seqs], context length in tokens, the query tokens included.
        scale: factor on the dot products, usually head_dim ** -0.5.
        sliding_window: w lets the query at position p see keys p-w+1 … p; None: all up to p.
        softcap: c turns a score s into c · tanh(s / c); None: left as it is.
        out: where to write, like ``query``; allocated if None.
        config: tile sizes; chosen by ``choose_launch`` if None.

    Returns:
        [num_tokens, num_heads, head_dim], dtype of ``query``; softmax and sums in float32.

    Raises:
        ValueError, TypeError: shapes, dtypes or devices do not fit together; bfloat16 under the interpreter.
    """
    check_attention(query, kv_layer, block_tables, query_start_loc, seq_lens, sliding_window, softcap, out)
    interpreted = is_interpreted(paged_attention_kernel)
    if interpreted and query.dtype == torch.bfloat16:
        raise TypeError(
            "query and KV cache are bfloat16, which tl.dot multiplies wrongly under Triton's interpreter: "
            'use a float32 or float16 cache there, or kernel="torch"'
        )
    for name, tensor in (("query", query), ("kv_layer", kv_layer), ("out", out)):
        if tensor is not None and tensor.stride(-1) != 1:
            raise ValueError(f"{name} has stride {tensor.stride(-1)} along head_dim; it must be 1: use .contiguous()")

    out = torch.empty_like(query) if out is None else out
    num_tokens, num_heads, head_dim = query.shape
    num_seqs, num_kv_heads, block_size = len(seq_lens), kv_layer.shape[2], kv_layer.shape[3]
    if num_tokens == 0:
        return out
    if config is None:
        config = choose_launch(
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            max_query_len=int(query_start_loc.diff().max()) if interpreted else num_tokens,
            max_context=int(seq_lens.max()) if interpreted else block_tables.shape[1] * block_size,
            group=num_heads // num_kv_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            element_size=kv_layer.element_size(),
            interpreted=interpreted,
        )
    target, split_max, split_sum = out, out, out
    if config.num_splits > 1:
        split_shape = (num_tokens, num_heads, config.num_splits)
        target = query.new_empty((*split_shape, head_dim), dtype=torch.float32)
        split_max, split_sum = query.new_empty((2, *split_shape), dtype=torch.float32)

    with launching(paged_attention_kernel, kv_layer.device):
        paged_attention_kernel[config.grid(num_tokens, num_seqs, num_kv_heads)](
            target,
            split_max,
            split_sum,
            query,
            kv_layer,
            block_tables,
            query_start_loc,
            seq_lens,
            scale * LOG2_E,
            num_seqs,
            *target.stride()[:2],
            *query.stride()[:2],
            *kv_layer.stride()[:4],
            block_tables.stride(0),
            NUM_HEADS=num_heads,
            GROUP=num_heads // num_kv_heads,
            HEAD_DIM=head_dim,
            HEAD_DIM_PADDED=next_power_of_two(head_dim),
            BLOCK_SIZE=block_size,
            WINDOW=sliding_window or 0,
            SOFTCAP=(softcap or 0.0) * LOG2_E,
            BLOCK_M=config.block_m,
            BLOCK_Q=config.block_q,
            TILE=config.tile,
            NUM_SPLITS=config.num_splits,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
        if config.num_splits > 1:
            merge_splits(out, target, split_max, split_sum)
    return out
