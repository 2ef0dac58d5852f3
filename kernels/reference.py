"""What the kernels compute, written with plain torch: the oracle of the tests and the path of ``kernel="torch"``.

Nothing here imports triton, so this file works on every platform. It is meant to be read first: the Triton files do the
same three things in a way that suits a GPU.

The KV cache is one tensor. A layer sees a view of it, ``kv[:, layer]``:

    kv_layer[block, K/V, kv_head, slot, head_dim]

    block 0          block 1          block 2                 a block holds ``block_size`` tokens;
    ┌──┬──┬──┬──┐    ┌──┬──┬──┬──┐    ┌──┬──┬──┬──┐           one slot holds one token's key (and value)
    │K0│K1│K2│K3│    │  │  │  │  │    │K4│K5│  │  │           of one KV head
    └──┴──┴──┴──┘    └──┴──┴──┴──┘    └──┴──┴──┴──┘
          ▲                                ▲
          └── logical block 0              └── logical block 1      block_table of this sequence: [0, 2]

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
§4.1.
"""

import torch
from torch import Tensor

from .checks import check_attention, check_move, check_write


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
    """Causal attention of a flat batch of query tokens over keys and values that lie in blocks.

    The queries of all sequences lie one after the other. Those of sequence i are the *last* positions of its context,
    which is prefill, a chunk of it, or decode, depending only on how many there are:

        query_start_loc   0           3     4                       query tokens      q0 q1 q2 │ q3 │ …
        seq_lens          3 (prefill) 6 (decode) …                  their positions   0  1  2  │ 5  │ …

    Args:
        query: [num_tokens, num_heads, head_dim], any float dtype.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], any strides. The keys and values of the query
            tokens themselves must already be in it (``write_kv``).
        block_tables: int32 [num_seqs, max_blocks]. Entry [i, j] is the block of positions j·block_size …; entries past
            a sequence's length, or wholly below its sliding window, are never used.
        query_start_loc: int32 [num_seqs + 1], rising; sequence i owns query rows [i] up to [i + 1].
        seq_lens: int32 [num_seqs], context length in tokens, the query tokens included.
        scale: factor on the dot products, usually head_dim ** -0.5.
        sliding_window: w lets the query at position p see keys p-w+1 … p (as Mistral and transformers do); None: all.
        softcap: c turns a score s into c · tanh(s / c), which lies between -c and c (Gemma 2); None: left as it is.
        out: where to write, like ``query``; allocated if None.

    Returns:
        [num_tokens, num_heads, head_dim], dtype of ``query``. Sums and softmax are in float32.
    """
    check_attention(query, kv_layer, block_tables, query_start_loc, seq_lens, sliding_window, softcap, out)
    out = torch.empty_like(query) if out is None else out
    starts, contexts = query_start_loc.tolist(), seq_lens.tolist()
    block_size, head_dim = kv_layer.shape[3], kv_layer.shape[4]
    for i, context in enumerate(contexts):
        rows = slice(starts[i], starts[i + 1])
        num_queries = rows.stop - rows.start
        if num_queries == 0:
            continue
        position = torch.arange(context - num_queries, context, device=query.device)
        lowest = 0 if sliding_window is None else max(0, context - num_queries - sliding_window + 1)

        # Logical to physical: gather this sequence's blocks, then cut its slots to the positions lowest … context-1.
        first_block, last_block = lowest // block_size, (context - 1) // block_size
        blocks = kv_layer[block_tables[i, first_block : last_block + 1].long()]
        slots = blocks.permute(1, 2, 0, 3, 4).reshape(2, kv_layer.shape[2], -1, head_dim)
        first_slot = lowest - first_block * block_size
        keys, values = slots[:, :, first_slot : first_slot + context - lowest]

        mask = None
        if num_queries > 1:  # A lone query is the last position: it sees every key that was gathered.
            key_position = torch.arange(lowest, context, device=query.device)
            mask = key_position <= position[:, None]
            if sliding_window is not None:
                mask &= key_position > position[:, None] - sliding_window
        out[rows] = _attend(query[rows], keys, values, mask, scale, softcap)
    return out


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Softmax attention of one sequence.

    A group of query heads shares a KV head (grouped-query attention), so the group joins the query tokens as rows:
    one matrix product per KV head, [group · queries, head_dim] × [head_dim, keys].

    Args:
        query: [queries, num_heads, head_dim].
        keys, values: [num_kv_heads, keys, head_dim].
        mask: bool [queries, keys], True where a query sees a key; None: everywhere.
        scale: factor on the dot products.
        softcap: bound of the scores, if any.

    Returns:
        [queries, num_heads, head_dim] in float32.
    """
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[0]
    rows = query.float().transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    scores = rows @ keys.float().transpose(1, 2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        by_head = scores.view(num_kv_heads, -1, num_queries, keys.shape[1])
        by_head.masked_fill_(~mask, float("-inf"))
    result = scores.softmax(dim=-1) @ values.float()
    return result.view(num_heads, num_queries, head_dim).transpose(0, 1)


def write_kv(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> None:
    """Store the new tokens' keys and values in their slots of one layer.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim]; converted to the dtype of the cache.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], any strides; written in place.
        slot_mapping: int64 [num_tokens], block · block_size + offset in the block; a negative slot skips its token.
            A slot appears at most once.
    """
    check_write(key, value, kv_layer, slot_mapping)
    keep = slot_mapping >= 0
    slots = slot_mapping[keep]
    block, offset = slots // kv_layer.shape[3], slots % kv_layer.shape[3]
    # The two index tensors are apart, so torch puts their dimension first: [token, kv_head, head_dim].
    kv_layer[block, 0, :, offset] = key[keep].to(kv_layer.dtype)
    kv_layer[block, 1, :, offset] = value[keep].to(kv_layer.dtype)


def move_blocks(source: Tensor, destination: Tensor, source_ids: Tensor, destination_ids: Tensor) -> None:
    """Copy whole blocks, every layer of them: ``destination[destination_ids[n]] = source[source_ids[n]]``.

    Serves copy-on-write (source and destination are one tensor) and swapping (one of them is the host's).

    Args:
        source, destination: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], equal but for num_blocks.
        source_ids, destination_ids: int64 [n]. The caller vouches that no block is both source and destination of one
            launch, nor a destination twice: the copies have no order.
    """
    check_move(source, destination, source_ids, destination_ids)
    blocks = source[source_ids.to(source.device)].to(destination.device)
    destination[destination_ids.to(destination.device)] = blocks
