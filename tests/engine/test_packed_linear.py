"""Packed linear layers multiply as the layers that they replace, and replace no layer that does more than multiply.

Few tokens are multiplied by our own kernel, straight from what oneDNN packed, as long as it lies there as we know it.
"""

import pytest
import torch
from torch import nn

pytest.importorskip("numba")

from pagelens.engine.models.packed_linear import PackedLinear, can_pack, pack_linears
from pagelens.kernels import numba_few_rows

pytestmark = pytest.mark.skipif(not can_pack(torch.zeros(1)), reason="this PyTorch has no oneDNN")


class Router(nn.Linear):
    """As some models have them: a linear layer whose answer is another."""

    def forward(self, x):
        return super().forward(x).topk(2)


@pytest.mark.parametrize("few_rows", [None, numba_few_rows], ids=["oneDNN", "Numba"])
@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (1, 2), (70,)])
@pytest.mark.parametrize("outputs", [1, 80, 128])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_product(shape, outputs, bias, dtype, few_rows):
    if not can_pack(torch.zeros(1, dtype=dtype)):
        pytest.skip(f"this processor does not multiply {dtype}")
    torch.manual_seed(0)
    linear = nn.Linear(50, outputs, bias=bias).to(dtype).requires_grad_(False)
    x = torch.randn(*shape, 50).to(dtype)
    found, expected = PackedLinear(linear, few_rows)(x), linear(x)
    assert found.shape == expected.shape and found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype is torch.float32 else 2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_are_taken_for_what_they_hold(dtype):
    """What was packed is recognised; another weight, or one whose words would be half of one input, is not."""
    if not can_pack(torch.zeros(1, dtype=dtype)):
        pytest.skip(f"this processor does not multiply {dtype}")
    weight, odd = torch.randn(100, 48).to(dtype), torch.randn(100, 47).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    tiles = numba_few_rows.tiles_of(packed, weight)
    if torch.cpu.get_capabilities().get("avx512_f", False):  # elsewhere oneDNN may pack in a way that we do not read
        assert tiles is not None and tiles.shape[0] * tiles.shape[2] >= 100
    assert numba_few_rows.tiles_of(packed, weight.roll(1)) is None
    if dtype is torch.bfloat16:
        assert numba_few_rows.tiles_of(torch.ops.mkldnn._reorder_linear_weight(odd), odd) is None


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
