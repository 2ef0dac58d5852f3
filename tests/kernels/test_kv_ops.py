"""write_kv and move_blocks in Triton against the same in torch, and both against plain loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from pagelens.kernels import kv_ops, reference

pytestmark = pytest.mark.triton


def random_pool(num_blocks, layers=2, kv_heads=2, block_size=8, head_dim=32, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_blocks, layers, 2, kv_heads, block_size, head_dim, generator=generator).to(dtype)


def test_a_token_lands_in_its_slot():
    pool = torch.zeros(4, 2, 2, 1, 8, 16)
    key, value = torch.full((1, 1, 16), 5.0), torch.full((1, 1, 16), 7.0)
    kv_ops.write_kv(key, value, pool[:, 1], torch.tensor([2 * 8 + 3]))
    assert (pool[2, 1, 0, 0, 3] == 5).all() and (pool[2, 1, 1, 0, 3] == 7).all()
    assert pool.count_nonzero() == 2 * 16


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    num_tokens=st.integers(1, 40),
    skipped=st.integers(0, 5),
    kv_heads=st.sampled_from([1, 2, 3]),
    head_dim=st.sampled_from([32, 80, 128]),
    block_size=st.sampled_from([1, 8, 16]),
    dtypes=st.sampled_from(
        [
            (torch.float32, torch.float32),
            (torch.float16, torch.float16),
            (torch.bfloat16, torch.bfloat16),
            (torch.bfloat16, torch.float32),
        ]
    ),
)
def test_write_equals_reference(num_tokens, skipped, kv_heads, head_dim, block_size, dtypes):
    """The layer is a view that is not contiguous; key and value are columns of a wider projection."""
    dtype, cache_dtype = dtypes
    pool = random_pool(48 // block_size + 1, 3, kv_heads, block_size, head_dim, cache_dtype)
    expected = pool.clone()
    projection = torch.randn(num_tokens, 3 * kv_heads, head_dim).to(dtype)
    key, value = projection[:, kv_heads : 2 * kv_heads], projection[:, 2 * kv_heads :]
    slots = torch.randperm(pool.shape[0] * block_size)[:num_tokens]
    slots[:skipped] = -1

    reference.write_kv(key, value, expected[:, 1], slots)
    kv_ops.write_kv(key, value, pool[:, 1], slots)
    assert torch.equal(pool, expected)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            stored = pool[slot // block_size, 1, :, :, slot % block_size]
            assert torch.equal(stored, torch.stack((key[token], value[token])).to(cache_dtype))


def test_writing_nothing_is_allowed():
    pool = random_pool(2)
    before = pool.clone()
    empty = torch.empty(0, 2, 32)
    for write_kv in (kv_ops.write_kv, reference.write_kv):
        write_kv(empty, empty, pool[:, 0], torch.empty(0, dtype=torch.int64))
        write_kv(torch.ones(1, 2, 32), torch.ones(1, 2, 32), pool[:, 0], torch.tensor([-1]))
    assert torch.equal(pool, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_moves_within_a_pool(program_order, dtype, order):
    """Copy-on-write: block 1 to 5 and 3 to 0; every layer, keys and values."""
    pool = random_pool(6, dtype=dtype)
    before = pool.clone()
    with program_order(order):
        kv_ops.move_blocks(pool, pool, torch.tensor([1, 3]), torch.tensor([5, 0]))
    assert torch.equal(pool[5], before[1]) and torch.equal(pool[0], before[3])
    assert torch.equal(pool[1:5], before[1:5])


@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=4, unique_by=lambda pair: pair[1]),
    head_dim=st.sampled_from([16, 80]),
    block_size=st.sampled_from([1, 16]),
)
def test_moves_between_pools_equal_reference(pairs, head_dim, block_size):
    """Swapping: from a pool of 8 blocks to one of 4."""
    source = random_pool(8, 2, 1, block_size, head_dim)
    destination = random_pool(4, 2, 1, block_size, head_dim, seed=1)
    expected = destination.clone()
    ids = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    reference.move_blocks(source, expected, ids[:, 0], ids[:, 1])
    kv_ops.move_blocks(source, destination, ids[:, 0].contiguous(), ids[:, 1].contiguous())
    assert torch.equal(destination, expected)


def test_errors_name_value_and_limit():
    pool = random_pool(4)
    ids = torch.tensor([0])
    with pytest.raises(ValueError, match=r"key is \(1, 1, 32\); it must be \(1, 2, 32\)"):
        kv_ops.write_kv(torch.zeros(1, 1, 32), torch.zeros(1, 2, 32), pool[:, 0], ids)
    with pytest.raises(TypeError, match=r"slot_mapping is torch.int32; it must be torch.int64"):
        kv_ops.write_kv(torch.zeros(1, 2, 32), torch.zeros(1, 2, 32), pool[:, 0], ids.int())
    with pytest.raises(ValueError, match=r"equal but for num_blocks"):
        kv_ops.move_blocks(pool, random_pool(4, layers=3), ids, ids)
    with pytest.raises(TypeError, match=r"source is torch.float32 and destination torch.float16"):
        kv_ops.move_blocks(pool, pool.half(), ids, ids)
    with pytest.raises(ValueError, match=r"two vectors of one length"):
        kv_ops.move_blocks(pool, pool, ids, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"must be one contiguous slab"):
        kv_ops.move_blocks(pool, pool.transpose(3, 4).contiguous().transpose(3, 4), ids, ids)
