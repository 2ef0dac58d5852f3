"""A recorded run reads back as what it was; a broken file says where."""

import gzip
from pathlib import Path

import msgspec
import pytest
from scripted import scripted_engine

from pagelens.engine import Engine, SamplingParams, TraceError
from pagelens.engine.events import EVENT_TYPES, UnknownEvent
from pagelens.engine.kvtrace import Trace, TraceWriter, decode_event


def record(path: Path, skip_steps: int = 0, capacity: int = 1 << 16) -> Engine:
    engine = scripted_engine()
    engine.log._capacity = capacity
    for number in range(5):
        engine.add_request([number] * 9, SamplingParams(max_tokens=8, n=2))
    for _ in range(skip_steps):
        engine.step()
    with TraceWriter(path, engine.log) as writer:
        while engine.has_work:
            engine.step()
            writer.drain()
    return engine


@pytest.mark.parametrize("name", ["run.kvtrace", "run.kvtrace.gz"])
def test_a_recording_reads_back(tmp_path: Path, name: str) -> None:
    engine = record(tmp_path / name)
    trace = Trace(tmp_path / name)
    assert trace.events == engine.log.read(0)
    assert trace.header.run == engine.log.header.run
    *_, (_, picture) = trace.pictures()
    assert picture == engine.log.snapshot()


def test_a_recording_that_began_in_mid_run_carries_its_base(tmp_path: Path) -> None:
    engine = record(tmp_path / "late.kvtrace", skip_steps=9, capacity=200)
    trace = Trace(tmp_path / "late.kvtrace")
    assert trace.events[0].seq > 0
    assert trace.start().fold(trace.events) == engine.log.snapshot()


def test_a_cut_off_file_says_where(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    record(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(TraceError, match=r"run\.kvtrace is cut off in line \d+, after \d+ whole events: delete"):
        Trace(path)
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:10], lines[10][:15] + b"\n", *lines[11:]]))
    with pytest.raises(TraceError, match="broken at line 11, after 9 whole events"):
        Trace(path)


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"kind":"BlockAllocated"}\n', b"\x00\xff\n"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.kvtrace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"does not begin with a \.kvtrace header"):
        Trace(path)


def test_a_missing_or_half_gzip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist: record one with"):
        Trace(tmp_path / "none.kvtrace")
    path = tmp_path / "half.kvtrace.gz"
    path.write_bytes(gzip.compress(b"x" * 10_000)[:30])
    with pytest.raises(TraceError, match="not a whole gzip file"):
        Trace(path)


def test_a_kind_that_this_version_does_not_know_is_skipped_and_said(tmp_path: Path) -> None:
    path = tmp_path / "newer.kvtrace"
    record(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(lines[3].split(b'"')[3], b"BlockTeleported")
    lines[5] = lines[5][:-2] + b',"a_later_field":7}\n'
    path.write_bytes(b"".join(lines[:6]))
    trace = Trace(path)
    unknown = trace.events[2]
    assert isinstance(unknown, UnknownEvent) and unknown.name == "BlockTeleported" and unknown.seq == 2
    assert trace.start().fold(trace.events).unknown_kinds == {"BlockTeleported": 1}


GOLDEN = Path(__file__).parent / "golden_events.jsonl"


def test_events_of_earlier_versions_still_decode() -> None:
    """One line of every kind as it was first written. Fields may be added with a default, never renamed or removed."""
    seen = set()
    for line in GOLDEN.read_bytes().splitlines():
        event = decode_event(line)
        seen.add(type(event).__name__)
        assert not isinstance(event, UnknownEvent)
        again = msgspec.json.decode(msgspec.json.encode(event))
        assert msgspec.json.decode(line).items() <= again.items()
    assert seen == set(EVENT_TYPES), "a new kind needs a line in golden_events.jsonl"
