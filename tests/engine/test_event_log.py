"""The log holds the newest events and a picture at its tail; every held moment can be seen again."""

import itertools
import threading

import pytest
from scripted import scripted_engine

from pagelens.engine import Engine, SamplingParams, event_log
from pagelens.engine.event_log import EventLog
from pagelens.engine.events import EVENT_TYPES, EngineContinued, Phase, Why
from pagelens.engine.memory_map import KEEP_FINISHED, MemoryMap


def busy_engine(capacity: int, requests: int = 30) -> tuple[Engine, list]:
    """A run with preemption, forks and evictions, and all of its events, read as they came."""
    engine = scripted_engine(num_blocks=8, block_size=4)
    log = engine.log
    log._capacity = capacity
    events: list = []
    for number in range(requests):
        engine.add_request([number % 3] * 9, SamplingParams(max_tokens=8, n=1 + number % 3))
    while engine.has_work:
        engine.step()
        events += log.read(len(events)) or []
    return engine, events


def test_seq_is_gapless_and_time_does_not_run_back() -> None:
    _, events = busy_engine(capacity=1 << 16)
    assert [event.seq for event in events] == list(range(len(events)))
    assert all(before.t <= after.t for before, after in itertools.pairwise(events))
    assert all(event.cause < event.seq for event in events)


def test_a_snapshot_at_any_held_seq_equals_folding_from_the_start_also_after_the_ring_overran() -> None:
    engine, events = busy_engine(capacity=512)
    log = engine.log
    assert log.oldest_seq > 0, "the ring overran"
    picture = MemoryMap(num_blocks=8, block_size=4)
    for event in events:
        picture.apply(event)
        if event.seq >= log.oldest_seq - 1 and event.seq % 7 == 0:
            assert log.snapshot(event.seq) == picture
    assert log.snapshot() == picture


def test_keyframes_spare_later_snapshots_the_folding_and_go_with_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "KEYFRAME_EVERY", 100)
    engine, events = busy_engine(capacity=512)
    log = engine.log
    log.snapshot()
    assert len(log._keyframes) >= 3
    folded: list[int] = []
    monkeypatch.setattr(
        MemoryMap,
        "apply",
        lambda picture, event, apply=MemoryMap.apply: (folded.append(event.seq), apply(picture, event)),
    )
    for keyframe in sorted(log._keyframes)[:-1]:
        folded.clear()
        seq = keyframe + 50
        assert log.snapshot(seq) == MemoryMap(num_blocks=8, block_size=4).fold(events[: seq + 1])
        assert folded[:50] == list(range(keyframe + 1, seq + 1))
    for _ in range(600):
        log.emit(EngineContinued, Why.USER_RUN)
    log.snapshot()
    assert min(log._keyframes) >= log.oldest_seq


def test_a_stretch_is_a_picture_and_the_events_that_follow_it() -> None:
    engine, events = busy_engine(capacity=512)
    log = engine.log
    start = log.oldest_seq + 40
    picture, following = log.stretch(start, start + 30)
    assert following == events[start : start + 30]
    assert picture.fold(following) == log.snapshot(start + 29)
    with pytest.raises(ValueError, match="this run holds"):
        log.stretch(3)


def test_a_reader_that_fell_behind_takes_a_snapshot_and_goes_on() -> None:
    engine, _ = busy_engine(capacity=512)
    log = engine.log
    assert log.read(0) is None
    picture = log.snapshot(log.oldest_seq + 5)
    rest = log.read(picture.seq + 1)
    assert rest is not None
    assert picture.fold(rest) == log.snapshot()


def test_moments_that_are_not_held_are_refused_with_the_range_that_is() -> None:
    engine, _ = busy_engine(capacity=512)
    with pytest.raises(ValueError, match=f"no snapshot at seq 3: this run holds {engine.log.oldest_seq - 1} to"):
        engine.log.snapshot(3)


def test_a_gap_is_an_error_not_a_false_picture() -> None:
    _, events = busy_engine(capacity=1 << 16)
    picture = MemoryMap(num_blocks=8, block_size=4)
    picture.apply(events[0])
    with pytest.raises(ValueError, match="event 2 does not follow event 0"):
        picture.apply(events[2])


def test_snapshots_do_not_race_the_writer() -> None:
    engine = scripted_engine(num_blocks=64, block_size=4)
    log = EventLog(engine.log.header, capacity=256)
    wrong: list[Exception] = []
    writing = threading.Event()

    def read() -> None:
        try:
            while not writing.is_set():
                picture = log.snapshot()
                rest = log.read(picture.seq + 1)
                if rest is not None:
                    picture.fold(rest)
        except Exception as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(20_000):
        log.emit(EngineContinued, Why.USER_RUN)
    writing.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert log.snapshot().totals == {"EngineContinued": 20_000}


def test_only_so_many_finished_sequences_are_kept() -> None:
    engine = scripted_engine(num_blocks=8, block_size=4)
    for _ in range(KEEP_FINISHED + 10):
        engine.add_request([1, 2], SamplingParams(max_tokens=1))
    while engine.has_work:
        engine.step()
    assert len(engine.log.snapshot().sequences) == KEEP_FINISHED


def test_an_engine_that_nobody_watches_does_not_log() -> None:
    engine = Engine(scripted_engine().config, log_events=False, runner=scripted_engine().runner)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=3))
    while engine.has_work:
        engine.step()
    assert engine.log.next_seq == 0


def test_every_kind_says_why_phase_and_cause() -> None:
    for kind in EVENT_TYPES.values():
        assert {"seq", "step", "phase", "t", "why", "cause"} <= set(kind.__struct_fields__)
        assert kind.__doc__
    assert {phase.value for phase in Phase} == {"idle", "plan", "launch", "commit"}
