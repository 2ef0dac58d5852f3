"""Logical to physical, and the one boundary that small engines argue about."""

from hypothesis import given
from hypothesis import strategies as st

from pagelens.engine.block_table import BlockTable, blocks_needed


def test_blocks_needed_around_a_boundary() -> None:
    assert [blocks_needed(n, 16) for n in (0, 1, 15, 16, 17, 32, 33)] == [0, 1, 1, 1, 2, 2, 3]


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 8, 16, 256]))
def test_blocks_needed_is_the_least_that_holds_the_tokens(tokens: int, size: int) -> None:
    blocks = blocks_needed(tokens, size)
    assert blocks * size >= tokens > (blocks - 1) * size or tokens == blocks == 0


def test_slots_walk_the_table() -> None:
    table = BlockTable([7, 1, 3])
    assert table.slots(2, 6, block_size=4).tolist() == [30, 31, 4, 5, 6, 7]
    assert table.slots(9, 1, block_size=4).tolist() == [3 * 4 + 1]
