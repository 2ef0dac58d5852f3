"""MemoryMap: the whole memory picture, rebuilt from events alone.

A pure reducer. `MemoryMap.apply(event)` is the only way it changes, and nothing but events goes in, so the live page,
time travel, a replay file and a test that compares it with the engine all see the same thing.
`viz/static/memory_map.js` is the same reducer for the browser; its state is this one's JSON, which a test holds equal
event by event.

                 block   0      1      2      3      4
             ref_count   2      1      0      0      1
                 state   used   used   cached blank  used
    sequences["A.0"].table = [0, 1]      logical 0 -> block 0, logical 1 -> block 1
    sequences["B.0"].table = [0, 4]      block 0 is shared
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from . import events as ev
from .events import BlockState, Event, Phase

KEEP_FINISHED = 64
"""Finished sequences stay visible until this many newer ones have finished."""


class SequenceView(msgspec.Struct):
    """What a viewer knows of one sequence. `status` is waiting, running, preempted or finished.

    A negative entry -1 - h of `table` is block h of the host pool: swapped out.

    `lane` is the lowest number that no unfinished sequence has: sequences alive together differ in it, so that every
    viewer, however late, gives each the same colour. `last_step` is the step that last computed tokens of it, and so
    read every block of its table (-1: none yet). A fork continues `parent` from position `forked_at` on.
    """

    sequence: str
    request: str
    lane: int
    status: str
    token_ids: list[int]
    texts: list[str]
    num_prompt_tokens: int
    max_tokens: int
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    table: list[int] = []
    parent: str = ""
    forked_at: int = 0
    reason: str = ""
    last_event: int = -1
    last_step: int = -1


class Blocked(msgspec.Struct):
    """Why the first waiting request does not run now, in numbers of blocks."""

    sequence: str
    why: str
    needs: int
    free: int
    watermark: int
    promised: int


class MemoryMap(msgspec.Struct):
    """Blocks, tables and sequences after the event numbered `seq` (-1: before the first).

    `ref_count[b]` and `state[b]` describe physical block b. `hash` and `sealed_text` know the sealed blocks only.
    `allocated_in[b]` is the step that allocated a block which is not blank. `read_in[b]` is the last step in which a
    sequence that has since released it read it; of those that hold it now, `SequenceView.last_step` tells.
    `pending_copies` are the copies planned and not yet launched, `scheduled` what this step has yet to compute.
    `finished` lists the finished sequences still kept, oldest first.
    """

    num_blocks: int
    block_size: int
    seq: int = -1
    step: int = 0
    phase: Phase = Phase.IDLE
    ref_count: list[int] = []
    state: list[BlockState] = []
    hash: dict[int, str] = {}
    sealed_text: dict[int, list[str]] = {}
    last_touched: dict[int, int] = {}
    allocated_in: dict[int, int] = {}
    read_in: dict[int, int] = {}
    sequences: dict[str, SequenceView] = {}
    finished: list[str] = []
    scheduled: dict[str, int] = {}
    pending_copies: list[tuple[int, int]] = []
    blocked: Blocked | None = None
    halted_after: str = ""
    totals: dict[str, int] = {}
    unknown_kinds: dict[str, int] = {}

    def __post_init__(self) -> None:
        if not self.state:
            self.ref_count = [0] * self.num_blocks
            self.state = [BlockState.BLANK] * self.num_blocks

    def copy(self) -> "MemoryMap":
        """An independent copy."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self), type=MemoryMap)

    def fold(self, events: Iterable[Event]) -> "MemoryMap":
        """Apply all of `events` in order and return self."""
        for event in events:
            self.apply(event)
        return self

    def apply(self, event: Event) -> None:
        """Take the picture from before `event` to after it.

        Raises ValueError if `event` does not follow the last one applied: a gap would show a false picture.
        """
        if event.seq != self.seq + 1:
            raise ValueError(
                f"event {event.seq} does not follow event {self.seq}; start from a snapshot at {event.seq - 1}"
            )
        self.seq, self.step, self.phase = event.seq, event.step, event.phase
        kind = event.name if isinstance(event, ev.UnknownEvent) else type(event).__name__
        self.totals[kind] = self.totals.get(kind, 0) + 1
        reduce = _REDUCERS.get(type(event))
        if reduce is not None:
            reduce(self, event)
        elif type(event) not in _NO_CHANGE:
            self.unknown_kinds[kind] = self.unknown_kinds.get(kind, 0) + 1

    def holders(self, block: int) -> list[tuple[str, int]]:
        """(sequence, logical index) of every table entry that points to `block`."""
        return [
            (name, index)
            for name, view in self.sequences.items()
            for index, physical in enumerate(view.table)
            if physical == block
        ]

    def filled_slots(self, view: SequenceView, index: int) -> int:
        """How many slots of entry `index` of a sequence's table hold a token's keys and values."""
        return max(0, min(self.block_size, view.num_computed_tokens - index * self.block_size))

    def count(self, state: BlockState) -> int:
        """Number of blocks in `state`."""
        return self.state.count(state)

    def _free_lane(self) -> int:
        taken = {view.lane for view in self.sequences.values() if view.status != "finished"}
        return next(lane for lane in itertools.count() if lane not in taken)

    def _forget_finished(self, name: str) -> None:
        """A name may be used again once its request has ended."""
        if name in self.sequences:
            self.finished.remove(name)

    def _forget_content(self, block: int) -> None:
        for known in (self.hash, self.sealed_text, self.allocated_in, self.read_in):
            known.pop(block, None)

    # one function per kind; each only assigns what the event says

    def _arrived(self, e: ev.RequestArrived) -> None:
        self._forget_finished(e.sequence)
        self.sequences[e.sequence] = SequenceView(
            sequence=e.sequence,
            request=e.request,
            lane=self._free_lane(),
            status="waiting",
            token_ids=list(e.prompt_token_ids),
            texts=list(e.prompt_texts),
            num_prompt_tokens=len(e.prompt_token_ids),
            max_tokens=e.max_tokens,
            last_event=e.seq,
        )

    def _forked(self, e: ev.SequenceForked) -> None:
        self._forget_finished(e.child)
        parent = self.sequences[e.parent]
        self.sequences[e.child] = SequenceView(
            sequence=e.child,
            request=e.request,
            lane=self._free_lane(),
            status=e.status,
            token_ids=list(parent.token_ids),
            texts=list(parent.texts),
            num_prompt_tokens=parent.num_prompt_tokens,
            max_tokens=parent.max_tokens,
            num_computed_tokens=parent.num_computed_tokens if e.status == "running" else 0,
            num_cached_tokens=parent.num_cached_tokens,
            parent=e.parent,
            forked_at=len(parent.token_ids),
            last_event=e.seq,
            last_step=parent.last_step,
        )

    def _admitted(self, e: ev.SequenceAdmitted | ev.SequenceResumed) -> None:
        view = self.sequences[e.sequence]
        view.status = "running"
        view.num_computed_tokens = view.num_cached_tokens = e.num_computed_tokens
        view.last_event = e.seq

    def _scheduled(self, e: ev.SequenceScheduled) -> None:
        self.scheduled[e.sequence] = e.num_tokens
        view = self.sequences[e.sequence]
        view.last_event, view.last_step = e.seq, e.step

    def _allocated(self, e: ev.BlockAllocated) -> None:
        self.allocated_in[e.block] = e.step
        self._held(e)

    def _held(self, e: ev.BlockAllocated | ev.BlockShared) -> None:
        self.ref_count[e.block], self.state[e.block] = e.ref_count, e.state
        self.last_touched[e.block] = e.seq
        table = self.sequences[e.sequence].table
        if e.index == len(table):
            table.append(e.block)
        else:
            table[e.index] = e.block

    def _released(self, e: ev.BlockReleased) -> None:
        self.ref_count[e.block], self.state[e.block] = e.ref_count, e.state
        self.last_touched[e.block] = e.seq
        view = self.sequences[e.sequence]
        self.read_in[e.block] = max(self.read_in.get(e.block, -1), view.last_step)
        if e.state == BlockState.BLANK:
            self._forget_content(e.block)
        if view.table[e.index] == e.block:
            del view.table[e.index :]

    def _sealed(self, e: ev.BlockSealed) -> None:
        self.hash[e.block] = e.hash
        start = e.index * self.block_size
        self.sealed_text[e.block] = self.sequences[e.sequence].texts[start : start + self.block_size]
        self.last_touched[e.block] = e.seq

    def _unsealed(self, e: ev.BlockUnsealed) -> None:
        self.hash.pop(e.block, None)
        self.sealed_text.pop(e.block, None)

    def _evicted(self, e: ev.BlockEvicted) -> None:
        self.state[e.block] = e.state
        self.last_touched[e.block] = e.seq
        self._forget_content(e.block)

    def _copied(self, e: ev.BlockCopied) -> None:
        self.pending_copies.append((e.source, e.destination))

    def _preempted(self, e: ev.RequestPreempted) -> None:
        for name, computed in zip(e.sequences, e.num_computed_tokens or [0] * len(e.sequences), strict=True):
            view = self.sequences[name]
            view.status, view.num_computed_tokens, view.last_event = "preempted", computed, e.seq

    def _swapped_out(self, e: ev.BlocksSwappedOut) -> None:
        table = self.sequences[e.sequence].table
        for index, host_block in zip(e.indices, e.host_blocks, strict=True):
            table[index] = -1 - host_block

    def _host_freed(self, e: ev.HostBlocksFreed) -> None:
        self.sequences[e.sequence].table = []

    def _planned(self, e: ev.StepPlanned) -> None:
        self.blocked = Blocked(e.blocked, e.why, e.needs, e.free, e.watermark, e.promised) if e.blocked else None

    def _launched(self, e: ev.StepLaunched) -> None:
        self.pending_copies = []

    def _written(self, e: ev.TokensWritten) -> None:
        self.scheduled = {}
        for name, start, count in zip(e.sequences, e.starts, e.counts, strict=True):
            self.sequences[name].num_computed_tokens = start + count

    def _generated(self, e: ev.TokensGenerated) -> None:
        for name, token_id, text in zip(e.sequences, e.token_ids, e.texts, strict=True):
            view = self.sequences[name]
            view.token_ids.append(token_id)
            view.texts.append(text)
            view.last_event = e.seq

    def _finished(self, e: ev.SequenceFinished) -> None:
        view = self.sequences[e.sequence]
        view.status, view.reason, view.last_event = "finished", e.reason, e.seq
        self.finished.append(e.sequence)
        if len(self.finished) > KEEP_FINISHED:
            del self.sequences[self.finished.pop(0)]

    def _step_over(self, e: Event) -> None:
        self.scheduled, self.pending_copies = {}, []

    def _halted(self, e: ev.EngineHalted) -> None:
        self.halted_after = e.after

    def _continued(self, e: ev.EngineContinued) -> None:
        self.halted_after = ""


_REDUCERS: dict[type[Event], Callable[[MemoryMap, Any], None]] = {
    ev.RequestArrived: MemoryMap._arrived,
    ev.SequenceForked: MemoryMap._forked,
    ev.SequenceAdmitted: MemoryMap._admitted,
    ev.SequenceResumed: MemoryMap._admitted,
    ev.SequenceScheduled: MemoryMap._scheduled,
    ev.BlockAllocated: MemoryMap._allocated,
    ev.BlockShared: MemoryMap._held,
    ev.BlockReleased: MemoryMap._released,
    ev.BlockSealed: MemoryMap._sealed,
    ev.BlockUnsealed: MemoryMap._unsealed,
    ev.BlockEvicted: MemoryMap._evicted,
    ev.BlockCopied: MemoryMap._copied,
    ev.RequestPreempted: MemoryMap._preempted,
    ev.BlocksSwappedOut: MemoryMap._swapped_out,
    ev.HostBlocksFreed: MemoryMap._host_freed,
    ev.StepPlanned: MemoryMap._planned,
    ev.StepLaunched: MemoryMap._launched,
    ev.TokensWritten: MemoryMap._written,
    ev.TokensGenerated: MemoryMap._generated,
    ev.SequenceFinished: MemoryMap._finished,
    ev.StepCommitted: MemoryMap._step_over,
    ev.StepFailed: MemoryMap._step_over,
    ev.EngineHalted: MemoryMap._halted,
    ev.EngineContinued: MemoryMap._continued,
}
_NO_CHANGE = {ev.RequestRejected, ev.RequestAborted, ev.PrefixLookup, ev.BlocksSwappedIn, ev.KernelTraced}
