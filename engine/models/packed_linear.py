"""PackedLinear: a linear layer whose weights lie in memory in the order in which a CPU multiplies them.

    nn.Linear     weight [out, in] row after row       rearranged at every call, or multiplied at half the speed
    PackedLinear  weight in oneDNN's tiles             rearranged once, when the model is loaded

PyTorch's own compiler packs weights in the same way.
"""

import torch
from torch import Tensor, nn

from pagelens.kernels.layer_ops import FewRows


class PackedLinear(nn.Module):
    """The same product as `linear`, to rounding; the weight is an opaque tensor, which oneDNN reads.

    `few_rows` are the kernels that read it too, and faster where there are few tokens; None to leave all to oneDNN.
    """

    def __init__(self, linear: nn.Linear, few_rows: FewRows | None) -> None:
        super().__init__()
        plain = linear.weight.detach()
        self.bias = linear.bias
        self.weight = nn.Parameter(torch.ops.mkldnn._reorder_linear_weight(plain), requires_grad=False)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default
        (self._outputs, self._inputs), self._dtype = plain.shape, plain.dtype
        self._few_rows = few_rows
        self._tiles = few_rows.tiles_of(self.weight, plain) if few_rows else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        product: Tensor
        few = self._few_rows if self._tiles is not None and x.dtype is self._dtype else None
        if few and 0 < x.numel() <= few.MOST_ROWS * self._inputs:
            product = few.multiply(x.reshape(-1, self._inputs), self._tiles, self.bias, self._outputs)
            return product.view(*x.shape[:-1], self._outputs)
        product = self._multiply(x, self.weight, self.bias, "none", [], "")
        return product


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN is part of this PyTorch and multiplies this dtype on this CPU."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype is torch.float32:
        return True
    return weight.dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linears(module: nn.Module, few_rows: FewRows | None = None) -> None:
    """Replace each `nn.Linear` below `module` whose weight can be packed, but none that has a `forward` of its own.

    The unpacked weights are let go, unless the embedding is tied to the head: then the head's are there twice.
    """
    for name, child in module.named_children():
        if type(child) is nn.Linear and can_pack(child.weight):
            setattr(module, name, PackedLinear(child, few_rows))
        else:
            pack_linears(child, few_rows)
