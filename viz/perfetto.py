"""A recording as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

    process engine     steps      |------------- step 31 --------------|   budget, tokens and why as arguments
                                  | plan |       launch       | commit |
    process sequences  A.0        |------------------ running ------------------|
                                         |  decode at 74      |
                       B.0        |-- waiting --|-- running ...
    process blocks     block 6    |------------ A.0, logical 4 -----------|
                                            \\  flow: copied to
                       block 25              |-- A.2, logical 4 --------|
    counters           used, cached and blank blocks; running and waiting sequences; tokens of the step

Only blocks that take part in a copy have a track: a pool has too many to look at.
"""

from dataclasses import dataclass, field
from typing import Any

from pagelens.engine import events as ev
from pagelens.engine.events import BlockState, Event
from pagelens.engine.kvtrace import Trace
from pagelens.engine.memory_map import MemoryMap

Record = dict[str, Any]
ENGINE, SEQUENCES, BLOCKS = 1, 2, 3


def chrome_trace(trace: Trace) -> Record:
    """The document: `json.dumps` it into a file. Times are microseconds since the run began."""
    writer = _Writer(copied_blocks(trace.events))
    end = 0
    for event, picture in trace.pictures():
        writer.take(event, picture)
        end = event.t
    writer.finish(end)
    other = {"source": trace.header.source, "run": trace.header.run, "model": trace.header.model.get("name", "")}
    return {"traceEvents": writer.records, "displayTimeUnit": "ms", "otherData": other}


def copied_blocks(events: list[Event]) -> set[int]:
    """Blocks that are source or destination of a copy."""
    copies = [event for event in events if isinstance(event, ev.BlockCopied)]
    return {block for copy in copies for block in (copy.source, copy.destination)}


@dataclass
class _Open:
    """A slice that has begun on a track."""

    name: str
    start: int
    args: Record = field(default_factory=dict)


class _Writer:
    def __init__(self, blocks: set[int]) -> None:
        self.records: list[Record] = []
        self._blocks = blocks
        self._open: dict[tuple[int, int], _Open] = {}
        self._tracks: dict[str, int] = {}
        self._scheduled: dict[str, ev.SequenceScheduled] = {}
        self._copies: list[ev.BlockCopied] = []
        self._planned: ev.StepPlanned | None = None
        self._launched: ev.StepLaunched | None = None
        self._written: ev.TokensWritten | None = None
        self._step_number, self._begun = -1, 0
        for pid, name in ((ENGINE, "engine"), (SEQUENCES, "sequences"), (BLOCKS, "blocks that are copied")):
            self._name("process_name", pid, 0, name)
        self._name("thread_name", ENGINE, 1, "steps")
        for block in sorted(blocks):
            self._name("thread_name", BLOCKS, block + 1, f"block {block}")

    def take(self, event: Event, picture: MemoryMap) -> None:
        if event.phase == ev.Phase.PLAN and event.step != self._step_number:
            self._step_number, self._begun = event.step, event.t
        match event:
            case ev.RequestArrived():
                self._begin_state(event.sequence, "waiting", event)
            case ev.SequenceForked():
                self._begin_state(event.child, "running" if event.status == "running" else "preempted", event)
            case ev.SequenceAdmitted() | ev.SequenceResumed():
                self._begin_state(event.sequence, "running", event)
            case ev.RequestPreempted():
                for name in event.sequences:
                    self._begin_state(name, f"preempted ({event.mode})", event)
            case ev.SequenceFinished():
                self._end((SEQUENCES, self._track(event.sequence)), event.t, reason=event.reason)
            case ev.SequenceScheduled():
                self._scheduled[event.sequence] = event
            case ev.StepPlanned():
                self._planned = event
            case ev.StepLaunched():
                self._launched = event
            case ev.TokensWritten():
                self._written = event
            case ev.BlockAllocated() | ev.BlockShared():
                self._hold(event)
            case ev.BlockReleased() if event.ref_count == 0:
                self._end((BLOCKS, event.block + 1), event.t)
            case ev.BlockCopied():
                self._copies.append(event)
            case ev.StepCommitted():
                self._step(event)
                self._count(event, picture)
            case ev.StepFailed():
                self._scheduled.clear()
                self._copies.clear()

    def finish(self, end: int) -> None:
        """Close what is still open when the recording ends."""
        for track in list(self._open):
            self._end(track, end)

    def _step(self, event: ev.StepCommitted) -> None:
        """The step with its three phases, and in its launch what each sequence computed.

        The phases are placed by their own events: a halted engine may have stood between them.
        """
        planned, launched, written = self._planned, self._launched, self._written
        if planned is None or launched is None or written is None or launched.step != event.step:
            return  # the recording begins in the middle of this step, or nothing was launched in it
        start, launch_end, commit = self._begun, written.t, event.t - event.commit_ns
        args = {"seq": planned.seq, "why": planned.why, "budget": planned.budget, "tokens": sum(planned.num_tokens)}
        self._slice(ENGINE, 1, f"step {event.step}", start, event.t, args)
        for name, begin, end in (
            ("plan", start, planned.t),
            ("launch", launched.t, launch_end),
            ("commit", commit, event.t),
        ):
            self._slice(ENGINE, 1, name, begin, end, {})
        for name, scheduled in self._scheduled.items():
            decode = scheduled.num_tokens == 1 and scheduled.why == ev.Why.NEXT_TOKEN
            what = f"decode at {scheduled.start}" if decode else f"{scheduled.num_tokens} tokens from {scheduled.start}"
            about = {"seq": scheduled.seq, "why": scheduled.why}
            self._slice(SEQUENCES, self._track(name), what, launched.t, launch_end, about)
        for copy in self._copies:
            self._flow(copy, launched.t)
        self._scheduled.clear()
        self._copies.clear()

    def _flow(self, copy: ev.BlockCopied, at: int) -> None:
        """An arrow between two slices of the blocks' tracks: a moment in both of them while the bytes move."""
        common = {"cat": "copy", "name": "copy-on-write", "id": copy.seq, "ts": at / 1000, "pid": BLOCKS}
        self._mark(copy.source, f"copied to {copy.destination}", at, copy)
        self._mark(copy.destination, f"copy of {copy.source}", at, copy)
        self.records.append({"ph": "s", "tid": copy.source + 1, **common})
        self.records.append({"ph": "f", "bp": "e", "tid": copy.destination + 1, **common})

    def _mark(self, block: int, name: str, at: int, copy: ev.BlockCopied) -> None:
        args = {"seq": copy.seq, "sequence": copy.sequence, "why": copy.why, "cause": copy.cause}
        self._slice(BLOCKS, block + 1, name, at, at, args)

    def _count(self, event: ev.StepCommitted, picture: MemoryMap) -> None:
        blocks = {state.value: picture.count(state) for state in BlockState}
        statuses = [view.status for view in picture.sequences.values()]
        waiting = statuses.count("waiting") + statuses.count("preempted")
        tokens = sum(self._planned.num_tokens) if self._planned else 0
        for name, values in (
            ("blocks", blocks),
            ("sequences", {"running": statuses.count("running"), "waiting": waiting}),
            ("tokens of the step", {"tokens": tokens}),
        ):
            self.records.append({"ph": "C", "name": name, "pid": ENGINE, "ts": event.t / 1000, "args": values})

    def _hold(self, event: ev.BlockAllocated | ev.BlockShared) -> None:
        """A block's track tells who took it first; shares are told on the open slice."""
        if event.block not in self._blocks:
            return
        track, holder = (BLOCKS, event.block + 1), f"{event.sequence}, logical {event.index}"
        if track in self._open:
            self._open[track].args[f"shared at {event.seq}"] = holder
        else:
            self._open[track] = _Open(holder, event.t, {"seq": event.seq, "why": event.why})

    def _begin_state(self, sequence: str, name: str, event: Event) -> None:
        track = (SEQUENCES, self._track(sequence))
        self._end(track, event.t)
        self._open[track] = _Open(name, event.t, {"seq": event.seq, "why": event.why})

    def _end(self, track: tuple[int, int], at: int, **args: Any) -> None:
        begun = self._open.pop(track, None)
        if begun is not None:
            self._slice(*track, begun.name, begun.start, at, begun.args | args)

    def _track(self, sequence: str) -> int:
        if sequence not in self._tracks:
            self._tracks[sequence] = len(self._tracks) + 1
            self._name("thread_name", SEQUENCES, self._tracks[sequence], sequence)
        return self._tracks[sequence]

    def _slice(self, pid: int, tid: int, name: str, start: int, end: int, args: Record) -> None:
        where = {"pid": pid, "tid": tid, "ts": start / 1000, "dur": (end - start) / 1000}
        self.records.append({"ph": "X", "name": name, **where, "args": args})

    def _name(self, kind: str, pid: int, tid: int, name: str) -> None:
        self.records.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}})
