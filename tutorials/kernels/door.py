"""The door of the ladder's kernels: what they refuse, so that each can leave out what it is not about, and their tiles.

They compute addresses from shapes alone, so the tensors are contiguous; they load whole heads, so a head has 16, 32, 64
… elements; and of the options of ``paged_attention`` they have none. The engine's kernel, the last step, has no such
limits.
"""

import torch

from pagelens.kernels.checks import check_attention
from pagelens.kernels.launch import LaunchConfig, next_power_of_two
from pagelens.kernels.walk import AttentionCall

LOG2_E = 1.4426950408889634
"""The kernels take their exponentials to the base 2, as the hardware does: exp(x) = exp2(x · log2(e))."""

REMEDY = "use the engine's kernel, pagelens.kernels.paged_attention"


def small_tiles(group: int, num_splits: int = 1) -> LaunchConfig:
    """The fewest rows that tl.dot takes on a GPU (more for a group of more than 16 heads), and 32 keys."""
    rows = max(16, next_power_of_two(group))
    return LaunchConfig(rows, rows // group, tile=32, num_splits=num_splits)


def check(call: AttentionCall, *, one_query_each: bool = False) -> None:
    """Raise ValueError or TypeError for a call that a step of the ladder does not serve.

    Args:
        call: what is asked for.
        one_query_each: the step serves decode only.
    """
    check_attention(
        call.query,
        call.kv_layer,
        call.block_tables,
        call.query_start_loc,
        call.seq_lens,
        call.sliding_window,
        call.softcap,
        None,
    )
    head_dim = call.query.shape[2]
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim is {head_dim}; on the ladder it is a power of two from 16 on: {REMEDY}")
    for name, option in (("sliding_window", call.sliding_window), ("softcap", call.softcap)):
        if option is not None:
            raise ValueError(f"{name} is {option}; the ladder's kernels have no such option: {REMEDY}")
    for name, tensor in (("query", call.query), ("kv_layer", call.kv_layer), ("block_tables", call.block_tables)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}; it must be contiguous: .contiguous(), or {REMEDY}")
    if call.query.dtype == torch.bfloat16 and call.query.device.type == "cpu":
        raise TypeError("query is bfloat16, which Triton's interpreter multiplies wrongly: use float32 or float16")
    if one_query_each and len(call.query) != len(call.seq_lens):
        raise ValueError(
            f"{len(call.query)} query tokens for {len(call.seq_lens)} sequences; this kernel takes one each: "
            "climb to 03_any_query_length, or make each token a sequence of its own"
        )
