"""Moments: where a run comes to what its scenario explains and asks, found in its events step by step.

events of a step   71  72  73  74  75  76  77
a tour's `when`            ^ 73                   the player stops after it
a question's `before`          ^ 74               the player stops before it, at 73
its answer: `of`                   ^   ^          in the field `answer` of 75 and 76
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pagelens.engine.condition import Condition
from pagelens.engine.event_names import Facts

from .scenario import COUNT, Question, Scenario, Stop, Tour

Moment = dict[str, Any]


class Moments:
    """Those of one variant. `found` are all so far, in the order in which they came."""

    def __init__(self, scenario: Scenario, variant: str) -> None:
        self.found: list[Moment] = []
        tour = [_Watch("tour", i, stop, stop.when) for i, stop in enumerate(scenario.tour)]
        questions = [_Watch("question", i, stop, stop.before) for i, stop in enumerate(scenario.questions)]
        ours = [watch for watch in (*tour, *questions) if watch.stop.variant in ("", variant)]
        self._watches = [*ours, _Watch("picture", 0, Stop(text=""), scenario.picture)]

    @property
    def missing(self) -> list[str]:
        """What has not come yet: "tour 1: no event has matched ..."."""
        return [watch.complaint for watch in self._watches if watch.left]

    def find(self, step: Sequence[Facts]) -> Iterator[Moment]:
        """The moments in the events of a step."""
        for index, facts in enumerate(step):
            for watch in self._watches:
                if watch.comes_with(facts):
                    moment = watch.moment(step[index:])
                    self.found.append(moment)
                    yield moment


class _Watch:
    """Waits for one stop; `left` counts the matches that are still to come before it is there."""

    def __init__(self, kind: str, number: int, stop: Stop, condition: str) -> None:
        self.stop = stop
        self.left = stop.nth
        self._kind = kind
        self._number = number
        self._condition = Condition(condition)

    @property
    def complaint(self) -> str:
        times = f"{self.stop.nth} times" if self.stop.nth > 1 else "once"
        return f"{self._kind} {self._number + 1} never comes: no event matches {self._condition.text!r} {times}"

    def comes_with(self, facts: Facts) -> bool:
        if self.left == 0 or not self._condition.matches(facts):
            return False
        self.left -= 1
        return self.left == 0

    def moment(self, rest: Sequence[Facts]) -> Moment:
        """`rest` are the events of the step from the matching one on."""
        event = rest[0].event
        here: Moment = {"note": "moment", self._kind: self._number, "seq": event.seq}
        if isinstance(self.stop, Tour):
            return here | {"blocks": [block for field in self.stop.highlight for block in _values(event, field)]}
        if isinstance(self.stop, Question):
            return here | _answers(self.stop, rest)
        return here


def _answers(question: Question, rest: Sequence[Facts]) -> Moment:
    """The right answers, and the event after which they can be seen."""
    of = Condition(question.of) if question.of else None
    told = [facts.event for facts in rest if of.matches(facts)] if of else [rest[0].event]
    if question.answer == COUNT:
        return {"answers": [len(told)], "shown": (told[-1] if told else rest[-1].event).seq}
    values = [value for event in told for value in _values(event, question.answer, question.ask == "number")]
    return {"answers": list(dict.fromkeys(values)), "shown": (told[0] if told else rest[-1].event).seq}


def _values(event: Any, field: str, counted: bool = False) -> list[Any]:
    """What a field says, as a list; `counted`: a list counts as its length."""
    value = getattr(event, field)
    if isinstance(value, list):
        return [len(value)] if counted else value
    return [value]
