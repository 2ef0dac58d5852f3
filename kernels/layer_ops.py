"""What a model computes besides products and attention, written with plain torch.

A layer adds what its two halves found to the residual stream, which is the next norm's input, so that sum and norm are
one operation (as in vLLM, which has a fused kernel for each of these three).
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class LayerOps(Protocol):
    """What a model asks for: this module, or one that does the same in another way. Tensors are of one float dtype."""

    def add_rms_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the function of that name."""
        ...

    def rotate(self, projected: Tensor, num_heads: int, cos: Tensor, sin: Tensor) -> None:
        """See the function of that name."""
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See the function of that name."""
        ...

    def largest_of_each(self, logits: Tensor) -> list[int]:
        """See the function of that name."""
        ...


class FewRows(Protocol):
    """What multiplies few tokens by a weight that oneDNN has packed: `numba_few_rows.py`, or nothing."""

    MOST_ROWS: int

    def tiles_of(self, packed: Tensor, weight: Tensor) -> Any:
        """See the function of that name."""
        ...

    def multiply(self, x: Tensor, tiles: Any, bias: Tensor | None, outputs: int) -> Tensor:
        """See the function of that name."""
        ...


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum y = x + delta, and y / rms(y) * weight, the mean square taken in float32 (Zhang and Sennrich, 2019).

    Args:
        x: [rows, size], contiguous; may be overwritten by the sum.
        delta: like `x`, or None for nothing to add.
        weight: [size].
    """
    if delta is not None:
        x = x + delta
    return x, F.rms_norm(x, weight.shape, weight, eps)


def rotate(projected: Tensor, num_heads: int, cos: Tensor, sin: Tensor) -> None:
    """Rotate pairs (i, i + head_dim / 2) of the first `num_heads` heads of each token, in place (Su et al., 2021).

    Args:
        projected: [num_tokens, heads, head_dim], contiguous.
        num_heads: how many are rotated; the values behind them are not.
        cos, sin: [num_tokens, head_dim] and of the same dtype; the first half of the sines is negative.
    """
    x, cos, sin = projected[:, :num_heads], cos[:, None], sin[:, None]
    x.copy_(torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin))


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, the middle of SwiGLU (Shazeer, 2020): contiguous [rows, 2 * size] -> [rows, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def largest_of_each(logits: Tensor) -> list[int]:
    """Where each row [vocab_size] has its largest number, the first of equals."""
    if logits.device.type == "cpu":  # where NumPy's takes a sixteenth of the time of torch's in bfloat16
        return [int(row.float().numpy().argmax()) for row in logits]
    found: list[int] = logits.argmax(dim=-1).tolist()
    return found
