# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels that move keys and values: ``write_kv`` into slots, ``move_blocks`` between blocks.

``reference.py`` says the same in a few lines of torch, with pictures of the cache.
"""

import triton
import triton.language as tl
from torch import Tensor

from . import reference
from .availability import is_interpreted, launching
from .checks import check_move, check_write
from .launch import next_power_of_two, row_tile


@triton.jit
def write_kv_kernel(
    key_ptr,  # [num_tokens, num_kv_heads, head_dim]
    value_ptr,
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    slot_mapping_ptr,  # int64 [num_tokens]
    num_tokens,
    key_token_stride: tl.constexpr,
    key_head_stride: tl.constexpr,
    value_token_stride: tl.constexpr,
    value_head_stride: tl.constexpr,
    kv_block_stride: tl.constexpr,
    kv_kv_stride: tl.constexpr,
    kv_head_stride: tl.constexpr,
    kv_slot_stride: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROW: tl.constexpr,  # num_kv_heads · head_dim: what one token brings
    ROW_PADDED: tl.constexpr,  # the next power of two
    TOKENS: tl.constexpr,  # tokens of one program, a power of two
):
    """Scatter the K and V rows of TOKENS tokens to their slots."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping_ptr + token, mask=token < num_tokens, other=-1)
    block_offset = slot // BLOCK_SIZE * kv_block_stride + slot % BLOCK_SIZE * kv_slot_stride  # int64, as slot is

    element = tl.arange(0, ROW_PADDED)
    head = element // HEAD_DIM
    dim = element % HEAD_DIM
    keep = (slot >= 0)[:, None] & (element < ROW)[None, :]
    target = kv_ptr + block_offset[:, None] + (head * kv_head_stride + dim)[None, :]
    token = token.to(tl.int64)[:, None]
    key = tl.load(key_ptr + token * key_token_stride + (head * key_head_stride + dim)[None, :], mask=keep)
    tl.store(target, key, mask=keep)
    value = tl.load(value_ptr + token * value_token_stride + (head * value_head_stride + dim)[None, :], mask=keep)
    tl.store(target + kv_kv_stride, value, mask=keep)


def write_kv(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> None:
    """Store the new tokens' keys and values in their slots of one layer.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim]; converted to the dtype of the cache.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], head_dim contiguous; written in place.
        slot_mapping: int64 [num_tokens], block · block_size + offset in the block; a negative slot skips its token.
            A slot appears at most once.

    Raises:
        ValueError, TypeError: shapes, dtypes or devices do not fit together.
    """
    check_write(key, value, kv_layer, slot_mapping)
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (key.to(kv_layer.dtype), value.to(kv_layer.dtype)))
    row = next_power_of_two(num_kv_heads * head_dim)
    tokens = row_tile(num_tokens, row, interpreted=is_interpreted(write_kv_kernel))
    with launching(write_kv_kernel, kv_layer.device):
        write_kv_kernel[(triton.cdiv(num_tokens, tokens),)](
            key,
            value,
            kv_layer,
            slot_mapping,
            num_tokens,
            *key.stride()[:2],
            *value.stride()[:2],
            *kv_layer.stride()[:4],
            BLOCK_SIZE=kv_layer.shape[3],
            HEAD_DIM=head_dim,
            ROW=num_kv_heads * head_dim,
            ROW_PADDED=row,
            TOKENS=tokens,
        )


@triton.jit
def move_blocks_kernel(
    source_ptr,  # [num_blocks, …], the rest of a block contiguous
    destination_ptr,
    source_ids_ptr,  # int64 [n]
    destination_ids_ptr,
    source_block_stride: tl.constexpr,
    destination_block_stride: tl.constexpr,
    SLAB: tl.constexpr,  # elements of a block: all layers, K and V, heads, slots
    CHUNK: tl.constexpr,  # elements of one program
):
    """Copy one chunk of one block's slab."""
    pair = tl.program_id(0)
    element = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    source = tl.load(source_ids_ptr + pair) * source_block_stride
    destination = tl.load(destination_ids_ptr + pair) * destination_block_stride
    data = tl.load(source_ptr + source + element, mask=element < SLAB)
    tl.store(destination_ptr + destination + element, data, mask=element < SLAB)


def move_blocks(source: Tensor, destination: Tensor, source_ids: Tensor, destination_ids: Tensor) -> None:
    """Copy whole blocks, every layer of them, in one launch: ``destination[destination_ids] = source[source_ids]``.

        source       ┌───────┬───────┬───────┬───────┐      a block is one contiguous slab of
                     │   0   │   1   │   2   │   3   │      num_layers · 2 · num_kv_heads · block_size · head_dim
                     └───────┴───┬───┴───────┴───────┘      elements, so it moves without a loop over layers
        destination  ┌───────┬───│───┬───▼───┬───────┐
                     │   0   │   └───────▶ 2 │   3   │      source_ids [1], destination_ids [2]
                     └───────┴───────┴───────┴───────┘

    Between a CPU pool and a GPU pool (swapping) torch makes the copy, since a kernel cannot read ordinary host memory.

    Args:
        source, destination: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], equal but for num_blocks;
            may be one tensor (copy-on-write).
        source_ids, destination_ids: int64 [n]. The caller vouches that no block is both source and destination of one
            launch, nor a destination twice: programs run in any order.

    Raises:
        ValueError, TypeError: shapes, dtypes or layout do not fit.
    """
    check_move(source, destination, source_ids, destination_ids)
    if len(source_ids) == 0:
        return
    if source.device != destination.device:
        reference.move_blocks(source, destination, source_ids, destination_ids)
        return
    for name, pool in (("source", source), ("destination", destination)):
        if not pool[0].is_contiguous():
            raise ValueError(f"a block of {name} has strides {pool.stride()[1:]}; it must be one contiguous slab")
    slab = source[0].numel()
    chunk = row_tile(slab, 1, interpreted=is_interpreted(move_blocks_kernel))
    with launching(move_blocks_kernel, destination.device):
        move_blocks_kernel[(len(source_ids), triton.cdiv(slab, chunk))](
            source,
            destination,
            source_ids.to(source.device),
            destination_ids.to(source.device),
            source.stride(0),
            destination.stride(0),
            SLAB=slab,
            CHUNK=chunk,
        )
