"""The Chrome trace of a recording: slices lie within each other, counters are there, arrows join source and copy."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from scripted import crowded_run, scripted_engine

from pagelens.engine import Engine, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.kvtrace import Trace, TraceWriter
from pagelens.viz.perfetto import chrome_trace


def recording(engine: Engine, folder: Path) -> Trace:
    with TraceWriter(folder / "run.kvtrace", engine.log):
        while engine.has_work:
            engine.step()
    return Trace(folder / "run.kvtrace")


@pytest.fixture(params=["samples", "recompute", "swap"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Trace:
    if request.param != "samples":
        return recording(crowded_run(host_blocks=0 if request.param == "recompute" else 20), tmp_path)
    engine = scripted_engine(32, 4)
    engine.add_request([7] * 6, SamplingParams(max_tokens=9, n=4))
    return recording(engine, tmp_path)


def records_of(trace: Trace, phase: str) -> list[dict[str, Any]]:
    document = json.loads(json.dumps(chrome_trace(trace)))
    return [record for record in document["traceEvents"] if record["ph"] == phase]


def test_slices_of_a_track_nest_and_never_overlap(trace: Trace) -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for record in records_of(trace, "X"):
        assert record["dur"] >= 0
        start = round(record["ts"] * 1000)  # in ns again, so that rounding cannot part what is equal
        tracks[record["pid"], record["tid"]].append((start, start + round(record["dur"] * 1000)))
    assert len(tracks) > 3
    for slices in tracks.values():
        open_ends: list[int] = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_ends and open_ends[-1] <= start and end > open_ends[-1]:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_every_step_has_its_three_phases_and_what_its_sequences_computed(trace: Trace) -> None:
    slices = records_of(trace, "X")
    launched = sum(isinstance(event, ev.StepLaunched) for event in trace.events)
    for phase in ("plan", "launch", "commit"):
        assert sum(record["name"] == phase for record in slices) == launched
    scheduled = sum(isinstance(event, ev.SequenceScheduled) for event in trace.events)
    works = [record for record in slices if record["name"].startswith("decode at") or " tokens from " in record["name"]]
    assert len(works) == scheduled


def test_counters_are_what_the_map_counts_after_each_step(trace: Trace) -> None:
    expected = [
        {state: picture.state.count(state) for state in ("used", "cached", "blank")}
        for event, picture in trace.pictures()
        if isinstance(event, ev.StepCommitted)
    ]
    blocks = [record["args"] for record in records_of(trace, "C") if record["name"] == "blocks"]
    assert blocks == expected


def test_an_arrow_joins_each_copy_with_its_source(trace: Trace) -> None:
    copies = {event.seq: event for event in trace.events if isinstance(event, ev.BlockCopied)}
    launched = {event.step for event in trace.events if isinstance(event, ev.StepLaunched)}
    assert copies
    starts = {record["id"]: record for record in records_of(trace, "s")}
    ends = {record["id"]: record for record in records_of(trace, "f")}
    assert set(starts) == set(ends) == {seq for seq, event in copies.items() if event.step in launched}
    slices = records_of(trace, "X")
    for seq, start in starts.items():
        assert (start["tid"], ends[seq]["tid"]) == (copies[seq].source + 1, copies[seq].destination + 1)
        for arrow in (start, ends[seq]):
            assert any(
                (piece["pid"], piece["tid"]) == (arrow["pid"], arrow["tid"])
                and piece["ts"] <= arrow["ts"] <= piece["ts"] + piece["dur"]
                for piece in slices
            )
