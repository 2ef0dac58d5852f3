"""PackedLinear: a linear layer whose weights lie in memory in the order in which a CPU multiplies them.

    nn.Linear     weight [out, in] row after row       rearranged at every call, or multiplied at half the speed
    PackedLinear  weight in oneDNN's tiles             rearranged once, when the model is loaded

PyTorch's own compiler packs weights in the same way.
"""

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """The same product as `linear`, to rounding; the weight is an opaque tensor that only oneDNN can read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self._multiply = torch.ops.mkldnn._linear_pointwise.default
        self.weight = nn.Parameter(torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[num_tokens, in] -> [num_tokens, out]."""
        product: Tensor = self._multiply(x, self.weight, self.bias, "none", [], "")
        return product


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN is part of this PyTorch and multiplies this dtype on this CPU."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype is torch.float32:
        return True
    return weight.dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linears(module: nn.Module) -> None:
    """Replace each `nn.Linear` below `module` whose weight can be packed, but none that has a `forward` of its own.

    The unpacked weights are let go, unless the embedding is tied to the head: then the head's are there twice.
    """
    for name, child in module.named_children():
        if type(child) is nn.Linear and can_pack(child.weight):
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)
