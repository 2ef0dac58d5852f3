"""The event stream: server-sent events on the app's own routes, at most 25 messages a second, encoded once for all.

             EngineLoop.log                      publisher task                      readers (one per browser)
    ... 9726 9727 9728  <- emit      every 40 ms: new events -> one message     cursor 51 --> waits for message 52
                    |                                                           cursor 49 --> sends 49, 50, 51
                    +-- read ------> messages  49 50 51   (the newest 64)       cursor 12 --> gone: takes a snapshot

A reader keeps a cursor and nothing else. Whoever is new, has fallen behind, or sees a new run begin gets a `snapshot`
message (a MemoryMap and the events since) and goes on with `events` messages from there. A message may repeat events
that a snapshot already holds: a client skips what is not newer than its map.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from pagelens.engine.event_log import KEYFRAME_EVERY

if TYPE_CHECKING:
    from pagelens.engine.engine_loop import EngineLoop

SECONDS_BETWEEN_MESSAGES = 0.04
SECONDS_BETWEEN_HEARTBEATS = 10.0
MESSAGES_HELD = 64
EVENTS_PER_MESSAGE = 10_000
RECENT_EVENTS = 512
"""How many of the newest events a snapshot brings along at least, so that a new viewer can look and follow causes
back; the rest up to the last keyframe comes with them."""


class EventStream:
    """Follows whatever log the loop has now, for any number of readers. Lives on the server's event loop."""

    def __init__(self, engine_loop: "EngineLoop") -> None:
        self._loop = engine_loop
        self._log = engine_loop.log
        self._seq = 0
        self._told = self._loop_state()
        self._messages: deque[bytes] = deque()
        self._first = 0
        self._news = asyncio.Event()
        self._num_readers = 0
        self._publisher: asyncio.Task[None] | None = None
        self._closing = False

    async def messages(self) -> AsyncIterator[bytes]:
        """Everything one reader is sent, until the server closes or the reader goes."""
        self._num_readers += 1
        try:
            self._start_publisher()
            yield b"retry: 500\n\n"
            cursor = -1
            while not self._closing:
                end = self._first + len(self._messages)
                if cursor < self._first:
                    cursor = end
                    yield await asyncio.to_thread(self._encode_snapshot)
                elif cursor < end:
                    yield self._messages[cursor - self._first]
                    cursor += 1
                else:
                    yield await self._wait()
        finally:
            self._num_readers -= 1

    def close(self) -> None:
        """End every reader's stream, so that the server can stop."""
        self._closing = True
        self._wake_readers()

    async def _wait(self) -> bytes:
        """Until there is news; a comment line, which also finds out whether the reader is still there."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), SECONDS_BETWEEN_HEARTBEATS)
            return b""
        return b": still here\n\n"

    def _wake_readers(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _start_publisher(self) -> None:
        if self._publisher is None or self._publisher.done():
            self._begin_run()
            self._publisher = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while self._num_readers and not self._closing:
            if self._loop.log is not self._log:
                self._begin_run()
            events = self._log.read(self._seq, EVENTS_PER_MESSAGE)
            if events is None:
                self._begin_run()
            elif events:
                self._seq = events[-1].seq + 1
                self._send("events", {"run": self._log.header.run, "events": events})
            if self._loop_state() != self._told:
                self._told = self._loop_state()
                self._send("loop", self._told)
            await asyncio.sleep(SECONDS_BETWEEN_MESSAGES)

    def _loop_state(self) -> dict[str, Any]:
        """What a viewer must know of the loop and cannot learn from events."""
        failure = self._loop.failure
        return {
            "steps_per_second": self._loop.steps_per_second,
            "queued": self._loop.queued,
            "failure": None if failure is None else str(failure),
        }

    def _begin_run(self) -> None:
        """Forget what is held, which sends every reader to a snapshot."""
        self._log = self._loop.log
        self._seq = self._log.next_seq
        self._first += len(self._messages) + 1
        self._messages.clear()
        self._wake_readers()

    def _send(self, name: str, data: object) -> None:
        self._messages.append(_message(name, data))
        if len(self._messages) > MESSAGES_HELD:
            self._messages.popleft()
            self._first += 1
        self._wake_readers()

    def _encode_snapshot(self) -> bytes:
        log = self._loop.log
        start = (log.next_seq - RECENT_EVENTS) // KEYFRAME_EVERY * KEYFRAME_EVERY
        base, events = log.stretch(max(start, log.oldest_seq))
        return _message("snapshot", {"header": log.header, "base": base, "events": events, "loop": self._loop_state()})


def _message(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
