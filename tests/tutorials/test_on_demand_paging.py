"""Lesson 1: what its page claims is so."""

import re

import torch

from pagelens.engine import events as ev

LESSON = "01_on_demand_paging"


def test_contiguous_reservation_keeps_most_slots_busy_for_nobody(lesson, says) -> None:
    used, reserved = lesson.contiguous()
    assert (used, reserved) == (17, 48)
    says("17 tokens keep 48 slots busy", f"while {reserved - used} slots are empty")


def test_paged_all_four_run_and_only_last_blocks_have_empty_slots(lesson, says) -> None:
    used, taken = lesson.paged()
    assert used == sum(lesson.LENGTHS.values()) == 23
    empty = [-length % 4 for length in lesson.LENGTHS.values()]
    assert taken - used == sum(empty)
    says("{}, {}, {} and {} slots".format(*empty), "The blocks of B lie at 1, 5 and 7")
    assert lesson.filled_cache().tables["B"] == [1, 5, 7]


def test_the_cache_returns_what_was_stored() -> None:
    from importlib import import_module

    lesson = import_module(LESSON)
    cache = lesson.PagedKVCache(num_blocks=6, block_size=2, head_dim=3)
    stored: dict[str, list[torch.Tensor]] = {"x": [], "y": []}
    for name in stored:
        cache.allocate_sequence(name)
    for number in range(10):
        name = "xy"[number % 3 == 0]
        key = torch.full((3,), float(number))
        stored[name].append(key)
        cache.append_token(name, key, -key)
    for name, keys in stored.items():
        got_keys, got_values = cache.get_keys_values(name)
        assert torch.equal(got_keys, torch.stack(keys)) and torch.equal(got_values, -torch.stack(keys))
    cache.free_sequence("x")
    cache.free_sequence("y")
    assert sorted(cache.free_blocks) == list(range(6))


def test_attention_through_the_table_is_the_same(lesson) -> None:
    assert lesson.attention_does_not_notice() < 1e-6


def test_exhaustion_names_who_and_where(lesson, says) -> None:
    assert re.search(r"B needs a block for position 4, but all 3 are in use", lesson.exhaustion())
    says("has already read four tokens")


def test_the_engine_takes_blocks_only_when_needed_and_reuses_them(lesson, says) -> None:
    run = lesson.in_the_engine()
    assert run.freed == [3, 0]
    assert {block for block, _, _ in run.heirs} == {3, 0}
    assert len({name for _, name, _ in run.heirs}) == 2
    says("11 blocks of 4", "Its blocks belong to two others now", "A.0 is block 0, then block 3", "Six steps after")
    ended = next(e.step for e in run.events if isinstance(e, ev.SequenceFinished))
    assert run.reused.step - ended == 6 and run.together.num_blocks == 11
    for event in run.events:
        if isinstance(event, ev.BlockAllocated):
            assert event.why == "table_grows"
    for view in run.reused.sequences.values():
        if view.status == "running":
            assert len(view.table) == -(-view.num_computed_tokens // 4)


def test_every_line_still_has_the_successor_that_the_table_names(lesson) -> None:
    import inspect
    from pathlib import Path

    source = inspect.getsource(lesson.PagedKVCache)
    assert len(source.splitlines()) <= 50
    for line, path, name, _ in lesson.GREW_INTO:
        assert line in source
        text = (Path(__file__).parents[2] / path).read_text()
        assert re.search(rf"^\s*(class|def) {name}\b", text, re.MULTILINE), f"{name} is not in {path}"
