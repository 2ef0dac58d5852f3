"""Packed linear layers multiply as the layers that they replace, and replace no layer that does more than multiply."""

import pytest
import torch
from torch import nn

from pagelens.engine.models.packed_linear import PackedLinear, can_pack, pack_linears

pytestmark = pytest.mark.skipif(not can_pack(torch.zeros(1)), reason="this PyTorch has no oneDNN")


class Router(nn.Linear):
    """As some models have them: a linear layer whose answer is another."""

    def forward(self, x):
        return super().forward(x).topk(2)


@pytest.mark.parametrize("rows", [0, 1, 3, 70])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_product(rows, bias, dtype):
    if not can_pack(torch.zeros(1, dtype=dtype)):
        pytest.skip(f"this processor does not multiply {dtype}")
    torch.manual_seed(rows)
    linear = nn.Linear(48, 80, bias=bias).to(dtype).requires_grad_(False)
    x = torch.randn(rows, 48).to(dtype)
    found, expected = PackedLinear(linear)(x), linear(x)
    assert found.shape == (rows, 80) and found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype is torch.float32 else 2e-2, atol=1e-2)


def test_every_linear_layer_is_packed_and_nothing_else():
    model = nn.Sequential(
        nn.Linear(8, 8), nn.ModuleDict({"mlp": nn.Linear(8, 4), "router": Router(4, 3)}), nn.Embedding(5, 8)
    )
    pack_linears(model)
    kinds = {name: type(part) for name, part in model.named_modules()}
    assert kinds["0"] is kinds["1.mlp"] is PackedLinear
    assert kinds["1.router"] is Router and kinds["2"] is nn.Embedding


def test_what_cannot_be_packed_stays():
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), nn.Linear(8, 8, dtype=torch.float16))
    pack_linears(model)
    assert [type(part) for part in model] == [nn.Linear, nn.Linear]
