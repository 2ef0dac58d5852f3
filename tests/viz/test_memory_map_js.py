"""The browser's reducer is Python's reducer: equal after every event, on any log."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chromium import Browser
from fake_engine import FakeEngine, emit_trace, random_run
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import crowded_run

from pagelens.engine import memory_map as python_side
from pagelens.engine.event_log import EventLog
from pagelens.engine.events import EVENT_TYPES, EngineContinued, EngineHalted, Phase
from pagelens.engine.kvtrace import decode_event, encode_event
from pagelens.engine.memory_map import MemoryMap

pytestmark = pytest.mark.browser

STATIC = Path(python_side.__file__).parents[1] / "viz" / "static"

SEEDS = (94, 148)
"""Short runs that between them have every kind of event."""

FOLD = """([state, events]) => {
    const map = new MemoryMap(state);
    return JSON.stringify(events.map(event => { map.apply(event); return structuredClone({ ...map }); }));
}"""

COPIES = """events => {
    const map = MemoryMap.empty(events.blocks, events.size);
    const kept = [];
    for (const event of events.list) {
        const copy = copyOfMap(map);
        kept.push([copy, JSON.stringify(copy)]);
        map.apply(event);
        const other = copyOfMap(copy);
        other.apply(event);
        if (JSON.stringify(other) !== JSON.stringify(map)) return `a copy went another way at event ${event.seq}`;
    }
    const changed = kept.findIndex(([copy, before]) => JSON.stringify(copy) !== before);
    return changed < 0 ? "" : `the copy from before event ${changed} has changed`;
}"""

Fold = Callable[[MemoryMap, list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Any]:
    page = chromium.new_page()
    for script in ("memory_map.js", "history.js"):
        page.add_script_tag(path=str(STATIC / script))
    yield page
    page.close()


@pytest.fixture(scope="module")
def fold_in_js(page: Any) -> Fold:
    return lambda base, events: msgspec.json.decode(page.evaluate(FOLD, [msgspec.to_builtins(base), events]))


def assert_equal_throughout(fold: Fold, base: MemoryMap, lines: list[bytes]) -> None:
    ours = fold(base.copy(), [msgspec.json.decode(line) for line in lines])
    picture = base.copy()
    for line, browsers in zip(lines, ours, strict=True):
        picture.apply(decode_event(line))
        assert browsers == msgspec.json.decode(msgspec.json.encode(picture)), line


def lines_of(log: EventLog) -> list[bytes]:
    return [encode_event(event) for event in log.read(0) or []]


def empty(log: EventLog) -> MemoryMap:
    return MemoryMap(num_blocks=log.header.num_blocks, block_size=log.header.block_size)


def test_equal_on_every_kind_of_event(fold_in_js: Fold) -> None:
    seen: set[str] = set()
    for seed in SEEDS:
        engine = random_run(random.Random(seed), 14)
        engine.log.emit(EngineHalted, "user_halt", after=Phase.COMMIT)
        engine.log.emit(EngineContinued, "user_run")
        emit_trace(engine.log)
        assert_equal_throughout(fold_in_js, empty(engine.log), lines_of(engine.log))
        seen |= set(engine.log.snapshot().totals)
    swapping = crowded_run(host_blocks=30).log
    assert_equal_throughout(fold_in_js, empty(swapping), lines_of(swapping))
    seen |= set(swapping.snapshot().totals)
    assert seen == set(EVENT_TYPES)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_shares_nothing_that_changes(page: Any, seed: int) -> None:
    """Keyframes and what is looked at are copies that have in common what a map replaces and never alters."""
    log = random_run(random.Random(seed), 14).log
    events = [msgspec.json.decode(line) for line in lines_of(log)]
    run = {"blocks": log.header.num_blocks, "size": log.header.block_size, "list": events}
    assert page.evaluate(COPIES, run) == ""


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 25))
def test_equal_on_random_runs(fold_in_js: Fold, seed: int, num_steps: int) -> None:
    engine = random_run(random.Random(seed), num_steps)
    assert_equal_throughout(fold_in_js, empty(engine.log), lines_of(engine.log))


def test_equal_from_a_snapshot_in_the_middle(fold_in_js: Fold) -> None:
    engine = random_run(random.Random(9), 30)
    middle = engine.log.next_seq // 2
    assert_equal_throughout(fold_in_js, engine.log.snapshot(middle - 1), lines_of(engine.log)[middle:])


def test_oldest_finished_sequences_are_forgotten(fold_in_js: Fold) -> None:
    engine = FakeEngine(random.Random(2), num_blocks=40)
    for _ in range(python_side.KEEP_FINISHED + 20):
        engine.arrive(3, max_tokens=1)
        engine.step()
    assert engine.log.snapshot().totals["SequenceFinished"] > python_side.KEEP_FINISHED
    assert_equal_throughout(fold_in_js, engine.log.snapshot(engine.log.next_seq - 201), lines_of(engine.log)[-200:])


def test_an_unknown_kind_is_counted_and_skipped(fold_in_js: Fold) -> None:
    engine = random_run(random.Random(3), 3)
    lines = lines_of(engine.log)
    stranger = {"kind": "BlockTeleported", "seq": len(lines), "step": 9, "phase": "idle", "t": 1, "why": "new"}
    lines.append(msgspec.json.encode(stranger))
    assert_equal_throughout(fold_in_js, empty(engine.log), lines)
    picture = fold_in_js(empty(engine.log), [msgspec.json.decode(line) for line in lines])[-1]
    assert picture["unknown_kinds"] == {"BlockTeleported": 1}


def test_fields_that_an_older_file_lacks_get_their_defaults(fold_in_js: Fold) -> None:
    old = {"kind": "RequestArrived", "seq": 0, "step": 0, "phase": "idle", "t": 0, "why": "submitted"}
    old |= {"request": "A", "sequence": "A.0", "prompt_token_ids": [1, 2]}
    blocked = {"kind": "StepPlanned", "seq": 1, "step": 1, "phase": "plan", "t": 0, "why": "waits_for_blocks"}
    blocked |= {"sequences": [], "num_tokens": [], "budget": 8, "num_waiting": 1, "blocked": "A.0"}
    base = MemoryMap(num_blocks=4, block_size=2)
    assert_equal_throughout(fold_in_js, base, [msgspec.json.encode(old), msgspec.json.encode(blocked)])


def test_a_gap_is_refused(fold_in_js: Fold) -> None:
    late = {"kind": "StepCommitted", "seq": 7, "step": 0, "phase": "idle", "t": 0, "why": "", "plan_ns": 0}
    with pytest.raises(Exception, match="event 7 does not follow event -1"):
        fold_in_js(MemoryMap(num_blocks=4, block_size=2), [late])


def test_equal_on_a_run_of_the_real_engine(fold_in_js: Fold) -> None:
    engine = crowded_run(host_blocks=0)
    assert {"BlockCopied", "RequestPreempted", "BlockEvicted"} <= set(engine.log.snapshot().totals)
    assert_equal_throughout(fold_in_js, empty(engine.log), lines_of(engine.log))
