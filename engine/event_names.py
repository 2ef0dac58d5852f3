"""The names by which a condition speaks of an event.

block       17 in   BlockAllocated.block   BlockCopied.source, .destination   BlocksSwappedOut.blocks
sequence    "A.0"   SequenceScheduled.sequence   TokensGenerated.sequences   SequenceForked.child
request     "A"     RequestArrived.request, and whatever names one of its sequences
kind        the event's type
free        the free blocks of the pool after the event, whatever the event
any other   the event's own field of that name
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_type_hints

from .events import EVENT_TYPES, BlockState, Event, Phase, Why

KINDS = frozenset(EVENT_TYPES) - {"EngineHalted", "EngineContinued"}
"""What can be waited for; those two are the debugger's own doing."""

CLOSED: dict[str, Iterable[str]] = {"kind": sorted(KINDS), "why": Why, "phase": Phase, "state": BlockState}
"""Names with a closed list of values."""

_SPOKEN_OF = {
    "block": ("block", "source", "destination", "blocks"),
    "sequence": ("sequence", "sequences", "child"),
    "request": ("request",),
}
_HINTS = {kind: get_type_hints(EVENT_TYPES[kind]) for kind in KINDS}

_NUMBERS = (int, float, list[int], list[float])

IS_NUMBER = {name: hint in _NUMBERS for hints in _HINTS.values() for name, hint in hints.items()}
"""Every name, and whether it stands for numbers; the others are text."""
IS_NUMBER |= {"kind": False, "block": True, "sequence": False, "request": False, "free": True}


class Facts(NamedTuple):
    """An event, the free blocks of the pool after it, and whether it changed their number."""

    event: Event
    free: int
    changed_free: bool


def has(kind: str, name: str) -> bool:
    """Whether events of `kind` say something about `name`."""
    fields = _HINTS[kind].keys()
    if name == "request":
        return "request" in fields or has(kind, "sequence")
    if name in _SPOKEN_OF:
        return any(field in fields for field in _SPOKEN_OF[name])
    return name in fields or name in ("kind", "free")


def names_of(kind: str) -> list[str]:
    """All names that events of `kind` say something about."""
    return [name for name in sorted(IS_NUMBER) if has(kind, name)]


def value_of(name: str) -> Callable[[Facts], tuple[Any, ...]]:
    """How to get what `name` stands for: several values where an event names several blocks, say, or none."""
    if name == "free":
        return lambda facts: (facts.free,)
    if name == "kind":
        return lambda facts: (type(facts.event).__name__,)
    if name == "request":
        return _requests
    fields = _SPOKEN_OF.get(name, (name,))
    return lambda facts: _values(facts.event, fields)


def _values(event: Event, fields: tuple[str, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for field in fields:
        value = getattr(event, field, None)
        if isinstance(value, list):
            found += value
        elif value is not None:
            found.append(value)
    return tuple(found)


def _requests(facts: Facts) -> tuple[Any, ...]:
    named = _values(facts.event, _SPOKEN_OF["request"])
    return named or tuple(name.rpartition(".")[0] for name in _values(facts.event, _SPOKEN_OF["sequence"]))
