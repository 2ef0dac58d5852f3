"""EventLog: the run's events, and the only way out of the engine.

A ring of the newest events plus a `MemoryMap` at its tail, and one more wherever a reader has passed a keyframe:

     base (MemoryMap at seq 4095)    events 4096 ... 8191      8192 ... 9728
    +----------------------------+  +------------------------+----------------+
    | everything older, folded   |  | held whole, read by cursor              |  <- emit appends
    +----------------------------+  +------------------------+----------------+
                                                             keyframe

An event is folded into the base before it is dropped, so a snapshot at any held `seq` exists and cannot race the
engine. Readers keep a cursor and nothing else; one that falls behind takes a snapshot and goes on from there.
"""

import threading
import time
import uuid
from typing import Any

import msgspec

from .events import EVENT_TYPES, SCHEMA_VERSION, Event, Phase
from .memory_map import MemoryMap

KEYFRAME_EVERY = 4096
"""Events between two pictures that are kept, so that no snapshot folds more than this many."""


class LogHeader(msgspec.Struct, kw_only=True):
    """What a reader must know before the first event; also the first line of a `.kvtrace`.

    `run` changes with every start and model load. `source` names who emitted the events, `capabilities` what they can
    tell, so that a viewer hides what this source cannot know. `sources` says where each event is emitted (see
    `source_lines`). `base` is the picture that the first event follows, where that is not the empty pool.
    """

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    schema: int = SCHEMA_VERSION
    run: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex[:12])
    source: str = "engine"
    capabilities: list[str] = msgspec.field(default_factory=lambda: ["blocks", "tables", "tokens", "causes"])
    config: dict[str, Any] = {}
    model: dict[str, Any] = {}
    kernel: dict[str, Any] = {}
    kinds: dict[str, list[str]] = msgspec.field(
        default_factory=lambda: {name: list(kind.__struct_fields__) for name, kind in EVENT_TYPES.items()}
    )
    sources: dict[str, str] = {}
    base: MemoryMap | None = None


class EventLog:
    """Appended to by the engine's thread alone; read from any thread.

    `enabled=False` makes `emit` return at once: an engine that nobody watches does not log.
    """

    def __init__(self, header: LogHeader, capacity: int = 1 << 16, enabled: bool = True) -> None:
        self.header = header
        self.enabled = enabled
        self.step = 0
        self.phase = Phase.IDLE
        self._capacity = capacity
        self._started = time.perf_counter_ns()
        self._events: list[Event] = []
        self._next_seq = 0
        self._base = MemoryMap(num_blocks=header.num_blocks, block_size=header.block_size)
        self._keyframes: dict[int, MemoryMap] = {}
        self._latest = self._base
        self._lock = threading.Lock()

    @property
    def next_seq(self) -> int:
        """The `seq` that the next event will carry, which is the number of events so far."""
        return self._next_seq

    @property
    def oldest_seq(self) -> int:
        """The oldest event still held; a reader with a smaller cursor needs a snapshot."""
        return self._base.seq + 1

    def emit(self, kind: type[Event], why: str, cause: int = -1, **fields: Any) -> int:
        """Append one event and return its `seq`, to be passed as the `cause` of what follows from it."""
        if not self.enabled:
            return -1
        seq = self._next_seq
        now = time.perf_counter_ns() - self._started
        self._events.append(kind(seq=seq, step=self.step, phase=self.phase, t=now, why=why, cause=cause, **fields))
        self._next_seq = seq + 1
        if len(self._events) > self._capacity:
            self._fold_oldest()
        return seq

    def read(self, cursor: int, limit: int | None = None) -> list[Event] | None:
        """Events from `cursor` on, at most `limit`; None if the ring has passed `cursor`: take a snapshot."""
        with self._lock:
            start = cursor - self.oldest_seq
            if start < 0:
                return None
            return self._events[start : None if limit is None else start + limit]

    def held(self) -> tuple[MemoryMap, list[Event]]:
        """The picture before the oldest event held, and all events held."""
        with self._lock:
            return self._base.copy(), list(self._events)

    def snapshot(self, seq: int | None = None) -> MemoryMap:
        """The picture after event `seq` (default: the newest), folded on from the nearest one that is kept.

        Raises ValueError if `seq` is no longer held, or does not exist yet.
        """
        with self._lock:
            newest, oldest = self._next_seq - 1, self._base.seq
            seq = newest if seq is None else seq
            if not oldest <= seq <= newest:
                raise ValueError(f"no snapshot at seq {seq}: this run holds {oldest} to {newest}")
            kept = (self._base, self._latest, *self._keyframes.values())
            nearest = max((picture for picture in kept if oldest <= picture.seq <= seq), key=lambda kept: kept.seq)
            picture, events = nearest.copy(), self._events[nearest.seq - oldest : seq - oldest]
        for event in events:
            picture.apply(event)
            if (event.seq + 1) % KEYFRAME_EVERY == 0:
                self._keep(picture.copy())
        self._latest = picture.copy()
        return picture

    def stretch(self, start: int, end: int | None = None) -> tuple[MemoryMap, list[Event]]:
        """The picture before event `start`, and the events from there to before `end` (default: all).

        Raises ValueError if `start` is no longer held, or does not exist yet.
        """
        picture = self.snapshot(start - 1)
        events = self.read(start, None if end is None else end - start)
        if events is None:
            raise ValueError(f"no events from seq {start} on: this run holds {self.oldest_seq} and later")
        return picture, events

    def _keep(self, keyframe: MemoryMap) -> None:
        with self._lock:
            held = {seq: kept for seq, kept in self._keyframes.items() if seq > self._base.seq}
            self._keyframes = held | {keyframe.seq: keyframe}

    def _fold_oldest(self) -> None:
        with self._lock:
            count = max(1, self._capacity // 16)
            self._base.fold(self._events[:count])
            del self._events[:count]
