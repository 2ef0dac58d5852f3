"""Cheap checks at the door of a kernel: shapes, dtypes and devices, never the values (those may lie on a GPU).

A kernel that is handed a wrong shape reads someone else's memory and says nothing. Each message names what came, what
is allowed, and what to do.
"""

from typing import NoReturn

import torch
from torch import Tensor


def check_attention(
    query: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sliding_window: int | None,
    softcap: float | None,
    out: Tensor | None,
) -> None:
    """Raise ValueError or TypeError unless the arguments of ``paged_attention`` fit together."""
    check_kv_layer(kv_layer)
    num_kv_heads, head_dim = kv_layer.shape[2], kv_layer.shape[4]
    if query.dim() != 3:
        refuse("query", tuple(query.shape), "[num_tokens, num_heads, head_dim]")
    if query.shape[2] != head_dim:
        refuse("head_dim of query", query.shape[2], f"{head_dim}, as in the cache")
    if query.shape[1] % num_kv_heads:
        refuse("num_heads", query.shape[1], f"a multiple of the cache's {num_kv_heads} KV heads")
    if query.dtype != kv_layer.dtype or not query.is_floating_point():
        raise TypeError(
            f"query is {query.dtype} and the KV cache {kv_layer.dtype}; both must be one float dtype: "
            f"convert the query, or create the cache with dtype={query.dtype}"
        )
    num_seqs = len(seq_lens)
    _check_int("block_tables", block_tables, torch.int32)
    _check_int("query_start_loc", query_start_loc, torch.int32)
    _check_int("seq_lens", seq_lens, torch.int32)
    if block_tables.dim() != 2 or block_tables.shape[0] != num_seqs:
        refuse("block_tables", tuple(block_tables.shape), f"[num_seqs = {num_seqs}, max_blocks]")
    if query_start_loc.shape != (num_seqs + 1,):
        refuse("query_start_loc", tuple(query_start_loc.shape), f"[{num_seqs + 1}], one more than seq_lens")
    if sliding_window is not None and sliding_window < 1:
        refuse("sliding_window", sliding_window, "None or at least 1 token")
    if softcap is not None and softcap <= 0:
        refuse("softcap", softcap, "None or above 0")
    if out is not None and (out.shape != query.shape or out.dtype != query.dtype):
        refuse("out", f"{tuple(out.shape)} {out.dtype}", f"{tuple(query.shape)} {query.dtype}, like query")
    _check_device(kv_layer, query, block_tables, query_start_loc, seq_lens, *([] if out is None else [out]))


def check_write(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> None:
    """Raise ValueError or TypeError unless the arguments of ``write_kv`` fit together."""
    check_kv_layer(kv_layer)
    shape = (len(slot_mapping), kv_layer.shape[2], kv_layer.shape[4])
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != shape:
            refuse(name, tuple(tensor.shape), f"{shape} = [len(slot_mapping), num_kv_heads, head_dim]")
    _check_int("slot_mapping", slot_mapping, torch.int64)
    _check_device(kv_layer, key, value, slot_mapping)


def check_move(source: Tensor, destination: Tensor, source_ids: Tensor, destination_ids: Tensor) -> None:
    """Raise ValueError or TypeError unless the arguments of ``move_blocks`` fit together."""
    if source.shape[1:] != destination.shape[1:] or source.dim() != 6:
        refuse(
            "source and destination",
            f"{tuple(source.shape)} and {tuple(destination.shape)}",
            "[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], equal but for num_blocks",
        )
    if source.dtype != destination.dtype:
        raise TypeError(
            f"source is {source.dtype} and destination {destination.dtype}: blocks move only between equal dtypes"
        )
    _check_int("source_ids", source_ids, torch.int64)
    _check_int("destination_ids", destination_ids, torch.int64)
    if source_ids.dim() != 1 or source_ids.shape != destination_ids.shape:
        refuse(
            "source_ids and destination_ids",
            f"{tuple(source_ids.shape)} and {tuple(destination_ids.shape)}",
            "two vectors of one length",
        )


def check_kv_layer(kv_layer: Tensor) -> None:
    """Raise ValueError unless this looks like one layer of the KV cache."""
    if kv_layer.dim() != 5 or kv_layer.shape[1] != 2:
        refuse(
            "kv_layer",
            tuple(kv_layer.shape),
            "[num_blocks, 2, num_kv_heads, block_size, head_dim], one layer of the cache: kv[:, layer]",
        )


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """Raise ValueError; what it says is put together only then, since each layer of each step is checked."""
    raise ValueError(f"{name} is {value}; it must be {allowed}")


def _check_int(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{name} is {tensor.dtype}; it must be {dtype}: use {name}.to({dtype})")


def _check_device(kv_layer: Tensor, *others: Tensor) -> None:
    for tensor in others:
        if tensor.device != kv_layer.device:
            raise ValueError(f"an argument is on {tensor.device} and the KV cache on {kv_layer.device}: move it there")
