# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The second launch of split-KV attention: merge what several programs found in their parts of one context.

One query over a long context is one program per KV head, and a GPU stands idle. So the context is split, and each
program leaves the state of its running softmax instead of a result:

    context      │ split 0      │ split 1      │ split 2      │          of each row (token, head):
                 └──────┬───────┴──────┬───────┴──────┬───────┘
                   max₀ sum₀ acc₀   max₁ sum₁ acc₁   max₂ sum₂ acc₂       max: largest score
                        └──────────────┼──────────────┘                   sum: Σ 2^(score − max)
                                    result                                acc: Σ 2^(score − max) · value

Two states merge as two tiles do in the attention kernel's loop: with M the largest max, split s counts 2^(max_s − M)
times (the log-sum-exp rule), so the result is Σ_s 2^(max_s − M) · acc_s  /  Σ_s 2^(max_s − M) · sum_s. A split in which
a row saw no key has max −1e30 and counts nothing.

Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language.standard import _elementwise_max as larger
from triton.language.standard import _sum_combine as plus

from .availability import launching
from .launch import next_power_of_two


@triton.jit
def merge_splits_kernel(
    out_ptr,  # [num_tokens, num_heads, head_dim]
    acc_ptr,  # float32 [num_tokens, num_heads, NUM_SPLITS, head_dim]
    split_max_ptr,  # float32 [num_tokens, num_heads, NUM_SPLITS]
    split_sum_ptr,
    out_token_stride: tl.constexpr,
    out_head_stride: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Merge the splits of one token and one head."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = (token * NUM_HEADS + head) * NUM_SPLITS + tl.arange(0, NUM_SPLITS)
    dim = tl.arange(0, HEAD_DIM_PADDED)
    split_max = tl.load(split_max_ptr + split)
    factor = tl.exp2(split_max - tl.reduce(split_max, 0, larger))
    total = tl.reduce(factor * tl.load(split_sum_ptr + split), 0, plus)
    acc = tl.load(acc_ptr + split[:, None] * HEAD_DIM + dim[None, :], mask=(dim < HEAD_DIM)[None, :], other=0.0)
    result = tl.reduce(acc * factor[:, None], 0, plus) / total
    tl.store(out_ptr + token * out_token_stride + head * out_head_stride + dim, result, mask=dim < HEAD_DIM)


def merge_splits(out: Tensor, acc: Tensor, split_max: Tensor, split_sum: Tensor) -> None:
    """Write the attention result that the states of all splits add up to.

    Args:
        out: [num_tokens, num_heads, head_dim], any float dtype; written.
        acc: float32 [num_tokens, num_heads, num_splits, head_dim], contiguous.
        split_max, split_sum: float32 [num_tokens, num_heads, num_splits], contiguous. num_splits is a power of two.
    """
    num_tokens, num_heads, num_splits, head_dim = acc.shape
    with launching(merge_splits_kernel, out.device):
        merge_splits_kernel[(num_tokens, num_heads)](
            out,
            acc,
            split_max,
            split_sum,
            *out.stride()[:2],
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            HEAD_DIM_PADDED=next_power_of_two(head_dim),
            NUM_SPLITS=num_splits,
        )
