"""Numba's norms, rotation and SwiGLU against torch's, in every dtype, in small batches and in shared ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from pagelens.kernels import layer_ops, numba_layer_ops

LIMIT = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
dtypes = st.sampled_from(list(LIMIT))
rows = st.sampled_from([0, 1, 3, 64, 300])


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a share of the number where that is above 1."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if not found.numel():
        return 0.0
    found, expected = found.double(), expected.double()
    return float(((found - expected).abs() / expected.abs().clamp(min=1)).max())


@settings(deadline=None, max_examples=40, derandomize=True)
@given(rows=rows, size=st.sampled_from([8, 24, 576]), dtype=dtypes, adds=st.booleans(), seed=st.integers(0, 9))
def test_sum_and_norm(rows, size, dtype, adds, seed):
    torch.manual_seed(seed)
    x, delta, weight = torch.randn(rows, size), torch.randn(rows, size), torch.rand(size)
    x, delta, weight = x.to(dtype), delta.to(dtype) if adds else None, weight.to(dtype)
    total, normalised = layer_ops.add_rms_norm(x.clone(), delta, weight, 1e-5)
    found_total, found = numba_layer_ops.add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(found_total, total)
    assert off(found, normalised) < LIMIT[dtype]
    assert found_total is x


@settings(deadline=None, max_examples=40, derandomize=True)
@given(rows=rows, heads=st.integers(1, 4), head_dim=st.sampled_from([8, 24, 64]), dtype=dtypes, seed=st.integers(0, 9))
def test_rotation_leaves_the_values_alone(rows, heads, head_dim, dtype, seed):
    torch.manual_seed(seed)
    projected = torch.randn(rows, heads + 2, head_dim).to(dtype)
    angles = torch.rand(rows, head_dim // 2) * 6
    cos, sin = angles.cos().repeat(1, 2).to(dtype), torch.cat((-angles.sin(), angles.sin()), 1).to(dtype)
    expected, untouched = projected.clone(), projected[:, heads:].clone()
    layer_ops.rotate(expected, heads, cos, sin)
    numba_layer_ops.rotate(projected, heads, cos, sin)
    assert off(projected, expected) < LIMIT[dtype] * 3
    assert torch.equal(projected[:, heads:], untouched)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    rows=rows, size=st.sampled_from([1, 24, 1536]), dtype=dtypes, scale=st.sampled_from([1, 30]), seed=st.integers(0, 9)
)
def test_swiglu(rows, size, dtype, scale, seed):
    torch.manual_seed(seed)
    gate_up = (torch.randn(rows, 2 * size) * scale).to(dtype)
    assert off(numba_layer_ops.silu_and_mul(gate_up), layer_ops.silu_and_mul(gate_up)) < LIMIT[dtype] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_rounded_as_torch_rounds_them(dtype):
    """Halves to even, denormal numbers, and what is too large for float16; a sum shows the rounding."""
    numbers = torch.cat([torch.randn(4096) * 10.0**power for power in (-8, -5, 0, 3, 5)]).view(-1, 64)
    halves = torch.tensor([[1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.0, 65520.0, -1e6, 0.0]])
    for values in (numbers, halves):
        exact = values.float()
        high = exact.to(dtype)
        rest = (exact - high.float()).nan_to_num(posinf=0, neginf=0).to(dtype)
        expected = (high.float() + rest.float()).to(dtype)
        total, _ = numba_layer_ops.add_rms_norm(high.clone(), rest, torch.ones(values.shape[1], dtype=dtype), 1e-5)
        assert torch.equal(total, expected)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(rows=st.sampled_from([0, 1, 3, 70]), size=st.sampled_from([1, 30, 5000]), dtype=dtypes, seed=st.integers(0, 9))
def test_the_first_of_the_largest(rows, size, dtype, seed):
    """In bfloat16 many of 5,000 numbers are equal."""
    logits = (torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)
    assert numba_layer_ops.largest_of_each(logits) == layer_ops.largest_of_each(logits)


@pytest.mark.parametrize("dtype", list(LIMIT))
def test_what_is_no_number_stays_none(dtype):
    x, weight = torch.ones(3, 8).to(dtype), torch.ones(8).to(dtype)
    x[1, 2] = float("nan")
    _, found = numba_layer_ops.add_rms_norm(x, None, weight, 1e-6)
    assert found[1].isnan().all() and not found[0].isnan().any() and not found[2].isnan().any()
