"""Breakpoints: which events the engine is to halt for.

    engine's thread   plan ........ | launch .... | commit ...          one look after each phase
    its new events    71 72 73 74 75  76 77         78 79 80
                            ^ BlockCopied matches: the engine halts here, at the end of the plan

The loop looks only while something is set, so that an engine without breakpoints pays nothing.
"""

import itertools
import threading
from dataclasses import dataclass

from .condition import Condition
from .errors import PagelensError
from .event_log import EventLog
from .event_names import Facts
from .events import BlockState, EngineContinued, EngineHalted, Event


@dataclass(eq=False)
class Breakpoint:
    """A condition with a number to speak of it. `num_hits` counts the events that matched while it was enabled."""

    number: int
    condition: Condition
    enabled: bool = True
    num_hits: int = 0

    def __str__(self) -> str:
        times = "once" if self.num_hits == 1 else f"{self.num_hits} times"
        return f"{self.number}: {self.condition.text} ({'' if self.enabled else 'disabled, '}matched {times})"


@dataclass(frozen=True)
class Hit:
    """`event` matched `breakpoint`; without one it matched what the engine was told to run until."""

    event: Event
    breakpoint: Breakpoint | None


class Breakpoints:
    """All breakpoints of one run, and at most one condition to run until. May be used from any thread.

    `hits` are the matches for which the engine halted last, in the order of their events; empty if it halted for
    another reason.
    """

    def __init__(self, log: EventLog) -> None:
        self.hits: list[Hit] = []
        self._log = log
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._breakpoints: dict[int, Breakpoint] = {}
        self._until: Condition | None = None
        self._follower: Follower | None = None

    @property
    def armed(self) -> bool:
        """Whether there is anything to look for."""
        return self._follower is not None

    def add(self, condition: Condition) -> Breakpoint:
        """Halt for every event from now on that matches."""
        with self._lock:
            point = Breakpoint(next(self._numbers), condition)
            self._breakpoints[point.number] = point
            self._arm()
        return point

    def all(self) -> list[Breakpoint]:
        """Every breakpoint, by number."""
        with self._lock:
            return list(self._breakpoints.values())

    def remove(self, number: int) -> None:
        """Forget a breakpoint. Raises PagelensError if there is none of this number."""
        with self._lock:
            del self._breakpoints[self._known(number)]
            self._arm()

    def enable(self, number: int, enabled: bool = True) -> None:
        """Switch a breakpoint on or off. Raises PagelensError if there is none of this number."""
        with self._lock:
            self._breakpoints[self._known(number)].enabled = enabled
            self._arm()

    def run_until(self, condition: Condition | None) -> None:
        """Halt once, for the next event that matches; None: no longer."""
        with self._lock:
            self._until = condition
            self._arm()

    def look(self) -> int | None:
        """Match the events since the last look; returns the `seq` of the first that someone waits for."""
        with self._lock:
            self.hits = [] if self._follower is None else self._match(self._follower)
            return self.hits[0].event.seq if self.hits else None

    def pass_over(self) -> None:
        """The engine goes on: what happened while it stood is no reason to halt again."""
        with self._lock:
            self.hits = []
            if self._follower is not None:
                self._follower.new_facts()

    def _match(self, follower: "Follower") -> list[Hit]:
        hits = []
        for facts in follower.new_facts():
            for point in self._breakpoints.values():
                if point.enabled and point.condition.matches(facts):
                    point.num_hits += 1
                    hits.append(Hit(facts.event, point))
            if self._until is not None and self._until.matches(facts):
                hits.append(Hit(facts.event, None))
        return hits

    def _arm(self) -> None:
        wanted = self._until is not None or any(point.enabled for point in self._breakpoints.values())
        if not wanted:
            self._follower = None
        elif self._follower is None:
            self._follower = Follower(self._log)

    def _known(self, number: int) -> int:
        if number not in self._breakpoints:
            known = ", ".join(map(str, self._breakpoints)) or "none"
            raise PagelensError(f"there is no breakpoint {number}; there are: {known}")
        return number


class Follower:
    """Reads the log from now on and keeps count of the free blocks."""

    def __init__(self, log: EventLog) -> None:
        picture = log.snapshot()
        self._log = log
        self._cursor = picture.seq + 1
        self._free = {block for block, state in enumerate(picture.state) if state is not BlockState.USED}

    def new_facts(self) -> list[Facts]:
        """What happened since the last call, but for the debugger's own events."""
        events = self._log.read(max(self._cursor, self._log.oldest_seq)) or []
        facts = []
        for event in events:
            before = len(self._free)
            state = getattr(event, "state", None)
            if state is not None:
                (self._free.discard if state is BlockState.USED else self._free.add)(event.block)  # type: ignore[attr-defined]
            if not isinstance(event, EngineHalted | EngineContinued):
                facts.append(Facts(event, len(self._free), len(self._free) != before))
        if events:
            self._cursor = events[-1].seq + 1
        return facts
