"""Tile sizes fit the kernel's rules for any shape, and waste no program where the interpreter pays for each."""

import pytest

from pagelens.kernels.launch import choose_launch, gpu_capability, row_tile

CAPABILITIES = [75, 80, 86, 89, 90, 100, 120]


def choose(num_tokens=4, num_seqs=4, max_query_len=1, max_context=250, group=4, head_dim=64, element_size=4, gpu=0):
    """`gpu`: its compute capability, ten times; 0 is the interpreter."""
    return choose_launch(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        max_query_len=max_query_len,
        max_context=max_context,
        group=group,
        num_kv_heads=2,
        head_dim=head_dim,
        element_size=element_size,
        interpreted=gpu == 0,
        capability=gpu,
    )


def power_of_two(n):
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("gpu", [0, *CAPABILITIES])
@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 71])
@pytest.mark.parametrize("head_dim", [32, 80, 256])
@pytest.mark.parametrize("tokens", [(4, 4, 1), (2000, 2, 1900), (130, 100, 31)])
def test_tiles_are_powers_of_two_that_hold_a_token(gpu, group, head_dim, tokens):
    for element_size in (2, 4):
        c = choose(*tokens, max_context=9000, group=group, head_dim=head_dim, element_size=element_size, gpu=gpu)
        assert power_of_two(c.block_m) and power_of_two(c.tile) and power_of_two(c.num_splits)
        assert c.block_q >= 1 and c.block_q * group <= c.block_m
        assert not gpu or (c.block_m >= 16 and c.tile >= 16)  # what tl.dot wants


@pytest.mark.parametrize("lengths", [[1] * 4, [200], [1, 1, 1, 100], [1]])
def test_interpreted_launches_have_no_surplus_program(lengths):
    c = choose(sum(lengths), len(lengths), max(lengths))
    launched, *_ = c.grid(sum(lengths), len(lengths), 2)
    assert launched == sum(-(-n // c.block_q) for n in lengths)


def test_only_long_contexts_in_small_decode_batches_are_split():
    assert choose(1, 1, max_context=4096, gpu=90).num_splits == 16
    assert choose(1, 1, max_context=200, gpu=90).num_splits == 1
    assert choose(128, 128, max_context=4096, gpu=90).num_splits == 1
    assert choose(20, 1, max_context=4096, gpu=90).num_splits == 1
    assert choose(1, 1, max_context=4096).num_splits == 1


def test_many_rows_only_where_matrix_units_multiply_them():
    def prefill(gpu, element_size=2):
        c = choose(2000, 2, 1900, max_context=2000, head_dim=128, element_size=element_size, gpu=gpu)
        return c.block_m, c.tile, c.num_warps

    assert {gpu: prefill(gpu) for gpu in CAPABILITIES} == {
        75: (16, 16, 4),
        **dict.fromkeys([80, 90, 100], (64, 64, 8)),
        **dict.fromkeys([86, 89, 120], (32, 64, 4)),
    }
    assert {prefill(gpu, element_size=4) for gpu in CAPABILITIES} == {(16, 16, 4)}


def test_the_gpu_that_is_here_is_asked(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    gpu_capability.cache_clear()
    try:
        assert gpu_capability() == 75
        assert choose(2000, 2, 1900, element_size=2, gpu=None).block_m == 16
    finally:
        monkeypatch.undo()
        gpu_capability.cache_clear()


def test_copying_kernels_take_about_a_thousand_elements_on_a_gpu():
    assert row_tile(5000, 128, interpreted=False) == 8
    assert row_tile(3, 128, interpreted=False) == 4
    assert row_tile(3, 4096, interpreted=False) == 1
