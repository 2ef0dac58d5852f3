"""Keeps a picture, and whatever measures it, in step with an engine's log."""

from typing import Protocol

from pagelens.engine import Engine
from pagelens.engine.events import Event
from pagelens.engine.memory_map import MemoryMap


class Measure(Protocol):
    """A `WasteMeter`, a `RunStats`: anything that takes an event with the picture after it."""

    def apply(self, event: Event, picture: MemoryMap) -> None:
        """Count one event."""
        ...


def empty_picture(engine: Engine) -> MemoryMap:
    """The picture before the first event."""
    return MemoryMap(num_blocks=engine.log.header.num_blocks, block_size=engine.log.header.block_size)


def follow(engine: Engine, picture: MemoryMap, *measures: Measure) -> list[Event]:
    """Apply the events since the last call, and return them. Call it often enough: the log is a ring."""
    events = engine.log.read(picture.seq + 1)
    assert events is not None, "the log has dropped events that were not read yet"
    for event in events:
        picture.apply(event)
        for measure in measures:
            measure.apply(event, picture)
    return events
