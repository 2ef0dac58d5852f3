"""Lesson 6: what its page claims is so."""

import pytest

LESSON = "06_waste"


def test_free_slots_in_pieces_are_of_no_use(lesson) -> None:
    free, needs = lesson.no_hole_is_large_enough()
    pieces, num_slots, _, _ = lesson.holes()
    assert free >= needs
    ends = [0, *(start + reserved for start, _, _, reserved, _ in pieces)]
    starts = [*(piece[0] for piece in pieces), num_slots]
    gaps = [start - end for start, end in zip(starts, ends, strict=True)]
    assert sum(gaps) == free and max(gaps) < needs
    assert len([gap for gap in gaps if gap]) == 2, "the caption speaks of two holes"


def test_the_split_adds_up_and_orders_the_systems(lesson, says) -> None:
    outcomes = lesson.four_systems()
    for outcome in outcomes.values():
        assert sum(outcome.saturated.shares().values()) == pytest.approx(1)
    tokens = [outcome.saturated.shares()["tokens"] for outcome in outcomes.values()]
    assert tokens == sorted(tokens)
    assert tokens[0] < 0.21 and tokens[3] > 0.94
    steps = [len(outcome.steps) for outcome in outcomes.values()]
    says(f"{steps[0]:,} steps against {steps[3]:,} is a factor of {steps[0] / steps[3]:.1f}")
    running = [round(outcome.running) for outcome in outcomes.values()]
    says(f"{running[0]} texts at once with the maximum, {running[3]} with paging")
    true = outcomes["true length"].saturated.shares()
    assert true["reservation"] == pytest.approx(0.25, abs=0.02) and true["external"] == pytest.approx(0.16, abs=0.01)
    assert true["unfilled"] == 0 and outcomes["paged"].saturated.external == 0
    paged = outcomes["paged"].saturated.shares()
    says(f"{paged['free']:.0%}".replace("%", " %") + ", although somebody waits", "and 2 % with paging")
    assert round(100 * paged["reservation"]) == 2


def test_paging_wastes_less_than_a_block_for_each_sequence(lesson, says) -> None:
    most, wasted = lesson.at_most_a_block()
    assert most == 15 and wasted < 0.02
    says("at most 15 slots with blocks of 16", "below two percent")


def test_larger_blocks_waste_more(lesson) -> None:
    shares = list(lesson.block_sizes().values())
    assert shares[0] == 0 and shares == sorted(shares) and shares[-1] > 0.2
