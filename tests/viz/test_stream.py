"""The stream: a snapshot, then every event once, the same bytes for all readers, whatever happens to the run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import pytest
from fake_engine import FakeLoop

from pagelens.engine.events import Event
from pagelens.engine.kvtrace import decode_event
from pagelens.engine.memory_map import MemoryMap
from pagelens.engine.sampling_params import SamplingParams
from pagelens.viz import stream as stream_module
from pagelens.viz.stream import EventStream


class Reader:
    """A client: keeps a MemoryMap from the messages, as the page does."""

    def __init__(self, stream: EventStream) -> None:
        self.messages: AsyncIterator[bytes] = stream.messages()
        self.raw: list[bytes] = []
        self.names: list[str] = []
        self.run = ""
        self.map = MemoryMap(num_blocks=1, block_size=1)
        self.speed: float | None = None
        self.failure: str | None = None

    async def receive(self) -> str:
        """Take in the next message and return its name."""
        while True:
            raw = await asyncio.wait_for(anext(self.messages), 5)
            if raw.startswith(b"event: "):
                break
        self.raw.append(raw)
        head, data = raw.decode().rstrip("\n").split("\ndata: ")
        name, body = head.removeprefix("event: "), msgspec.json.decode(data)
        self.names.append(name)
        if name == "snapshot":
            self.run, self.speed = body["header"]["run"], body["loop"]["steps_per_second"]
            self.map = msgspec.convert(body["base"], MemoryMap, strict=False).fold(decoded(body["events"]))
        elif name == "loop":
            self.speed, self.failure = body["steps_per_second"], body["failure"]
        elif body["run"] == self.run:
            self.map.fold(event for event in decoded(body["events"]) if event.seq > self.map.seq)
        return name

    async def follow(self, loop: FakeLoop) -> None:
        while self.run != loop.log.header.run or self.map.seq + 1 < loop.log.next_seq:
            await self.receive()


def decoded(events: list[Any]) -> list[Event]:
    return [decode_event(msgspec.json.encode(event)) for event in events]


Scenario = Callable[[FakeLoop, EventStream], Coroutine[Any, Any, None]]


def play(scenario: Scenario) -> None:
    async def main() -> None:
        loop = FakeLoop(num_blocks=16, block_size=4)
        await scenario(loop, EventStream(loop))  # type: ignore[arg-type]

    asyncio.run(main())


def work(loop: FakeLoop, steps: int = 3) -> None:
    loop.submit("twelve words or so, that is enough", SamplingParams(max_tokens=5))
    for _ in range(steps):
        loop.engine.step()


def test_a_reader_sees_what_the_engine_sees() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        work(loop)
        reader = Reader(stream)
        assert await reader.receive() == "snapshot"
        for _ in range(4):
            work(loop)
            await reader.follow(loop)
            assert reader.map == loop.log.snapshot()
        assert reader.names.count("snapshot") == 1

    play(scenario)


def test_a_snapshot_brings_the_newest_events_for_their_causes() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        work(loop, 20)
        reader = Reader(stream)
        await reader.receive()
        body = msgspec.json.decode(reader.raw[0].split(b"data: ")[1])
        assert body["base"]["seq"] == -1
        assert [event["seq"] for event in body["events"]] == list(range(loop.log.next_seq))

    play(scenario)


def test_events_are_encoded_once_for_all_readers() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        readers = [Reader(stream) for _ in range(3)]
        for reader in readers:
            await reader.receive()
        work(loop)
        for reader in readers:
            await reader.follow(loop)
        first, *others = [reader.raw[-1] for reader in readers]
        assert all(other is first for other in others)

    play(scenario)


def test_a_reader_that_falls_behind_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "SECONDS_BETWEEN_MESSAGES", 0.001)
    monkeypatch.setattr(stream_module, "MESSAGES_HELD", 4)

    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        quick, slow = Reader(stream), Reader(stream)
        await quick.receive()
        await slow.receive()
        for _ in range(12):
            work(loop, 1)
            await quick.follow(loop)
        assert await slow.receive() == "snapshot"
        await slow.follow(loop)
        assert slow.map == quick.map == loop.log.snapshot()
        assert quick.names.count("snapshot") == 1

    play(scenario)


def test_the_stream_itself_may_fall_behind_the_ring() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        reader = Reader(stream)
        await reader.receive()
        loop.log._capacity = 16
        work(loop, 20)
        await reader.follow(loop)
        assert reader.names == ["snapshot", "snapshot"]
        assert reader.map == loop.log.snapshot()

    play(scenario)


def test_a_new_run_begins_with_a_snapshot() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        reader = Reader(stream)
        await reader.receive()
        first = reader.run
        work(loop)
        await reader.follow(loop)
        loop.replace_log()
        work(loop)
        await reader.follow(loop)
        assert reader.run == loop.log.header.run != first
        assert reader.map == loop.log.snapshot()

    play(scenario)


def test_speed_and_failure_of_the_loop_are_told_when_they_change() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        reader = Reader(stream)
        await reader.receive()
        assert reader.speed == loop.steps_per_second
        loop.steps_per_second = None
        assert await reader.receive() == "loop"
        assert reader.speed is None
        loop.failure = RuntimeError("out of memory")
        assert await reader.receive() == "loop"
        assert reader.failure == "out of memory"

    play(scenario)


def test_close_ends_every_stream_at_once() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        readers = [Reader(stream) for _ in range(3)]
        for reader in readers:
            await reader.receive()
        waiting = [asyncio.ensure_future(reader.receive()) for reader in readers]
        await asyncio.sleep(0.05)
        stream.close()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
        assert all(isinstance(result, StopAsyncIteration) for result in results)

    play(scenario)


def test_silence_is_filled_with_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "SECONDS_BETWEEN_HEARTBEATS", 0.01)

    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        reader = Reader(stream)
        await reader.receive()
        assert await asyncio.wait_for(anext(reader.messages), 5) == b": still here\n\n"

    play(scenario)


def test_nothing_is_read_while_nobody_listens() -> None:
    async def scenario(loop: FakeLoop, stream: EventStream) -> None:
        reader = Reader(stream)
        await reader.receive()
        await reader.messages.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
        assert stream._publisher is not None and stream._publisher.done()
        again = Reader(stream)
        work(loop)
        await again.follow(loop)
        assert again.map == loop.log.snapshot()

    play(scenario)
