"""The launches that ``compile_report.py`` compiles: each kernel with the values that a model's shape gives it.

A Triton kernel is compiled once for each set of its ``tl.constexpr`` arguments and argument types. A Variant names one
such set, as a launch on a GPU would find it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .launch import choose_launch, next_power_of_two

POINTERS = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32"}


@dataclass(frozen=True)
class Variant:
    """One kernel with the compile-time values of one kind of launch.

    Attributes:
        kernel: name of the kernel.
        name: what the variant stands for, e.g. "bf16 decode d128".
        signature: argument name → Triton type; "constexpr" for compile-time values.
        constants: argument name → compile-time value.
        num_warps, num_stages: compile options.
    """

    kernel: str
    name: str
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 2


def attention_variant(
    dtype: str,
    capability: int,
    *,
    long_queries: bool,
    head_dim: int = 128,
    group: int = 4,
    num_kv_heads: int = 8,
    block_size: int = 16,
    num_layers: int = 32,
    window: int = 0,
    softcap: float = 0.0,
    num_seqs: int = 64,
) -> Variant:
    """Build the attention kernel's variant for a model's shape, with the tiles that ``choose_launch`` picks there."""
    config = choose_launch(
        num_tokens=num_seqs * (256 if long_queries else 1),
        num_seqs=num_seqs,
        max_query_len=0,
        max_context=4096,
        group=group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        element_size=4 if dtype == "fp32" else 2,
        interpreted=False,
        capability=capability,
    )
    splits = config.num_splits
    num_heads = group * num_kv_heads
    row = num_heads * head_dim
    slab = num_kv_heads * block_size * head_dim
    constants = {
        "out_token_stride": row * splits,
        "out_head_stride": head_dim * splits,
        "query_token_stride": row,
        "query_head_stride": head_dim,
        "kv_block_stride": num_layers * 2 * slab,
        "kv_kv_stride": slab,
        "kv_head_stride": block_size * head_dim,
        "kv_slot_stride": head_dim,
        "NUM_HEADS": num_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": next_power_of_two(head_dim),
        "BLOCK_SIZE": block_size,
        "WINDOW": window,
        "SOFTCAP": softcap,
        "BLOCK_M": config.block_m,
        "BLOCK_Q": config.block_q,
        "TILE": config.tile,
        "NUM_SPLITS": splits,
    }
    if num_seqs == 1:  # Triton compiles an argument that is 1 as a constant.
        constants["num_seqs"] = 1
    data = POINTERS[dtype]
    signature = {
        "out_ptr": "*fp32" if splits > 1 else data,
        "split_max_ptr": "*fp32" if splits > 1 else data,
        "split_sum_ptr": "*fp32" if splits > 1 else data,
        "query_ptr": data,
        "kv_ptr": data,
        "block_tables_ptr": "*i32",
        "query_start_loc_ptr": "*i32",
        "seq_lens_ptr": "*i32",
        "scale": "fp32",
        "num_seqs": "constexpr" if num_seqs == 1 else "i32",
        "table_stride": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }
    kind = "prefill" if long_queries else "decode"
    name = (
        f"{dtype} {kind} d{head_dim} g{group}"
        + (f" split{splits}" if splits > 1 else "")
        + (" window" if window else "")
        + (" cap" if softcap else "")
    )
    return Variant("paged_attention_kernel", name, signature, constants, config.num_warps, config.num_stages)


def variants(capability: int) -> Iterator[Variant]:
    """Yield the variants of the table, as they are launched on sm_<capability>."""
    for dtype in ("bf16", "fp16", "fp32"):
        for long_queries in (False, True):
            yield attention_variant(dtype, capability, long_queries=long_queries)
    yield attention_variant("bf16", capability, long_queries=False, num_seqs=1)
    yield attention_variant("bf16", capability, long_queries=False, head_dim=80, group=8)
    yield attention_variant("bf16", capability, long_queries=True, head_dim=64, group=3, window=1024, softcap=50)
    yield attention_variant("bf16", capability, long_queries=True, head_dim=256, group=1)
    yield attention_variant("fp32", capability, long_queries=True, head_dim=64)
    yield attention_variant("fp32", capability, long_queries=True, head_dim=256)
    yield merge_variant()
    yield write_variant()
    yield move_variant()


def merge_variant(num_heads: int = 32, head_dim: int = 128, num_splits: int = 8) -> Variant:
    """Build the variant of the merge of splits, to a bf16 result."""
    constants = {
        "out_token_stride": num_heads * head_dim,
        "out_head_stride": head_dim,
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": next_power_of_two(head_dim),
        "NUM_SPLITS": num_splits,
    }
    pointers = {"out_ptr": "*bf16", "acc_ptr": "*fp32", "split_max_ptr": "*fp32", "split_sum_ptr": "*fp32"}
    return Variant("merge_splits_kernel", "bf16", {**pointers, **dict.fromkeys(constants, "constexpr")}, constants)


def write_variant(num_kv_heads: int = 8, head_dim: int = 128, block_size: int = 16, num_layers: int = 32) -> Variant:
    """Build the variant of ``write_kv`` that one token per program gives, in bf16."""
    row, slab = num_kv_heads * head_dim, num_kv_heads * block_size * head_dim
    constants = {
        "key_token_stride": row,
        "key_head_stride": head_dim,
        "value_token_stride": row,
        "value_head_stride": head_dim,
        "kv_block_stride": num_layers * 2 * slab,
        "kv_kv_stride": slab,
        "kv_head_stride": block_size * head_dim,
        "kv_slot_stride": head_dim,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "ROW": row,
        "ROW_PADDED": next_power_of_two(row),
        "TOKENS": 1,
    }
    pointers = {
        "key_ptr": "*bf16",
        "value_ptr": "*bf16",
        "kv_ptr": "*bf16",
        "slot_mapping_ptr": "*i64",
        "num_tokens": "i32",
    }
    return Variant("write_kv_kernel", "bf16", {**pointers, **dict.fromkeys(constants, "constexpr")}, constants)


def move_variant() -> Variant:
    """Build the variant of ``move_blocks`` for 32 layers of 8 heads of 128 in blocks of 16, in bf16."""
    slab = 32 * 2 * 8 * 16 * 128
    constants = {"source_block_stride": slab, "destination_block_stride": slab, "SLAB": slab, "CHUNK": 1024}
    pointers = {
        "source_ptr": "*bf16",
        "destination_ptr": "*bf16",
        "source_ids_ptr": "*i64",
        "destination_ids_ptr": "*i64",
    }
    return Variant("move_blocks_kernel", "bf16", {**pointers, **dict.fromkeys(constants, "constexpr")}, constants)
