"""Contiguous memory with real placement, worked out by hand; and a static batch."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pagelens.engine import ConfigError
from pagelens.engine.contiguous import (
    ContiguousMemory,
    ContiguousServer,
    maximum,
    power_of_two,
    slots_used,
    true_length,
)
from pagelens.engine.static_batch import static_batches
from pagelens.engine.waste import SlotSplit, sum_of


def test_first_fit_and_holes_that_unite() -> None:
    memory = ContiguousMemory(20)
    a, b, c = (memory.allocate(length) for length in (4, 6, 5))
    assert (a, b, c) == (0, 4, 10) and memory.holes == [(15, 5)]
    memory.release(4, 6)
    assert memory.holes == [(4, 6), (15, 5)]
    assert memory.num_free == 11 and memory.allocate(7) is None, "11 slots are free, but no 7 of them side by side"
    assert memory.allocate(2) == 4 and memory.holes == [(6, 4), (15, 5)]
    memory.release(10, 5)
    assert memory.holes == [(6, 14)], "the piece unites with the holes on both its sides"
    memory.release(0, 4)
    memory.release(4, 2)
    assert memory.holes == [(0, 20)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_placement_equals_a_bitmap(actions: list[tuple[bool, int]]) -> None:
    """The same first fit, spelled out slot by slot."""
    memory, taken, pieces = ContiguousMemory(24), [False] * 24, []
    for allocate, number in actions:
        if allocate:
            fits = (s for s in range(25 - number) if not any(taken[s : s + number]))
            expected = next(fits, None)
            start = memory.allocate(number)
            assert start == expected
            if start is not None:
                pieces.append((start, number))
                taken[start : start + number] = [True] * number
        elif pieces:
            start, length = pieces.pop(number % len(pieces))
            memory.release(start, length)
            taken[start : start + length] = [False] * length
        assert memory.num_free == taken.count(False) == sum(length for _, length in memory.holes)


def test_what_the_three_systems_reserve() -> None:
    assert [slots_used(10, n) for n in (1, 2, 9)] == [10, 11, 18]
    assert [maximum(64)(10, n) for n in (1, 2, 9)] == [64, 64, 64]
    assert [power_of_two(64)(10, n) for n in (1, 2, 3, 9, 32, 33)] == [11, 12, 14, 26, 42, 64]
    assert [true_length()(10, n) for n in (1, 2, 9)] == [10, 11, 18]


def test_external_fragmentation_worked_out_by_hand() -> None:
    """20 slots. A and C end early; 10 slots are free in holes of 6 and 4, and D of 7 waits for B."""
    server = ContiguousServer(20, true_length(), max_num_batched_tokens=64, max_num_seqs=8)
    server.add("A", 5, 2)  # slots 0-5
    server.add("B", 6, 5)  # slots 6-15
    server.add("C", 4, 1)  # slots 16-19, ends in the first step
    server.add("D", 7, 1)
    assert server.step().finished == ["C"]
    assert server.steps[0].split == SlotSplit(tokens=15, reservation=5), "all 20 are taken, D finds nothing free"
    assert [step.waits_for_memory for step in server.steps] == [True]
    work = server.step()
    assert (work.finished, work.num_tokens, work.num_context_tokens) == (["A"], 2, 6 + 7)
    assert server.steps[1].split == SlotSplit(tokens=13, reservation=3, free=4), "4 are free, but D would need 7"
    for computed in (8, 9):
        assert server.step().finished == []
        assert server.steps[-1].split == SlotSplit(tokens=computed, reservation=10 - computed, external=10)
    assert server.memory.holes == [(0, 6), (16, 4)]
    assert server.step().finished == ["B"]
    assert server.step().finished == ["D"] and not server.has_work
    assert server.steps[-1].split == SlotSplit(tokens=7, free=13)
    assert sum_of(server.steps).total == 20 * len(server.steps)
    assert sum_of(server.steps, while_waiting=True).total == 20 * 5


def test_a_reservation_of_the_maximum_is_never_filled() -> None:
    server = ContiguousServer(32, maximum(16), max_num_batched_tokens=4, max_num_seqs=8)
    for name in "ABC":
        server.add(name, 6, 2)
    assert [server.step().num_tokens for _ in range(6)] == [4, 4, 4, 4, 4, 1]
    assert not server.has_work
    assert server.steps[0].split == SlotSplit(tokens=4, reservation=3, unfilled=9, free=16)
    assert server.steps[1].split == SlotSplit(tokens=8, reservation=6, unfilled=18)
    with pytest.raises(ConfigError, match="reserves 40 slots, but there are 32"):
        ContiguousServer(32, maximum(40), 4, 8).add("A", 1, 1)


def test_a_static_batch_waits_for_its_longest_answer() -> None:
    use = static_batches([(3, 2), (6, 6), (1, 3), (4, 5)], batch_size=3)
    assert (use.num_steps, use.row_steps, use.idle_row_steps) == (6 + 5, 18 + 5, 4 + 0 + 3)
    assert (use.prompt_slots, use.padding_slots) == (18 + 4, 3 + 0 + 5)
    assert use.idle_share == 7 / 23 and use.padding_share == 8 / 22
