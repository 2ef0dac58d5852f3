"""Scenario: a run that teaches one thing, as a data file that an instructor can write.

    [engine], [[arrivals]], [[variants]]      what is served, and how
    [[tour]]                                  text, once an event has matched
    [[questions]]                             asked before an event comes; the events that follow hold the answer

`scenario_file.py` reads and checks one; `docs/scenarios.md` describes each key.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec

from pagelens.engine import EngineConfig, PagelensError, SamplingParams
from pagelens.engine.errors import ConfigError

OWN_TOKENS = 10_000
"""Scripted request number i has its own token ids from (i + 1) * OWN_TOKENS on; those below are common to all."""

COUNT = "count"
"""The answer that is the number of events that match, instead of a field."""


class ScenarioError(PagelensError):
    """A scenario file cannot be read, asks for the impossible, or never comes to what it wants to show."""


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Arrival(_Table, kw_only=True):
    """`count` requests from step `step` on, one every `every` steps (0: all at once).

    A real model reads `prompt`; a script reads `prompt_tokens` token ids, of which the first `shared_prefix` are common
    to all requests of the scenario. `prompt_tokens` and `max_tokens` may be lists, from which the requests take in
    turn. `sampling` are the other SamplingParams.
    """

    step: int = 0
    count: int = 1
    every: int = 0
    prompt: str = ""
    prompt_tokens: int | list[int] = 0
    shared_prefix: int = 0
    max_tokens: int | list[int]
    priority: int = 0
    cache_salt: str = ""
    sampling: dict[str, Any] = {}


class Variant(_Table, kw_only=True):
    """Another way to serve the same arrivals: what differs from the scenario."""

    name: str
    title: str
    engine: dict[str, Any] = {}
    serving: Literal["continuous", "static", "contiguous", ""] = ""
    reservation: Literal["maximum", "power of two", "true length", ""] = ""
    host_blocks: int | None = None


class Stop(_Table, kw_only=True):
    """Where the player stops: at the `nth` event that matches, in one `variant` or ("") in each."""

    text: str
    nth: int = 1
    variant: str = ""


class Tour(Stop, kw_only=True):
    """Explains an event `when` it has come; opens `panels`, and outlines the blocks in its fields `highlight`."""

    when: str
    panels: list[str] = []
    highlight: list[str] = []


class Question(Stop, kw_only=True):
    """Asked before an event comes. The answer is the field `answer` of the events that match `of`, from there to the
    end of the step ("": of the event before which the player stops), or how many they are ("count").
    """

    before: str
    ask: Literal["block", "sequence", "choice", "number"]
    answer: str
    why: str
    of: str = ""
    hint: str = ""
    choices: dict[str, str] = {}


class Scenario(_Table, kw_only=True):
    """A whole file. `order` is its place in the list; `clock` is what two variants side by side share, and `tables`
    whether their block tables are shown from the beginning. `conclusion` is what the run has taught, said at its end.
    """

    title: str
    summary: str
    watch: str
    conclusion: str = ""
    picture: str
    runner: Literal["real", "scripted"] = "real"
    pace: Literal["events", "steps"] = "events"
    clock: Literal["steps", "time"] = "steps"
    tables: bool = False
    engine: dict[str, Any] = {}
    serving: Literal["continuous", "static", "contiguous"] = "continuous"
    reservation: Literal["maximum", "power of two", "true length"] = "maximum"
    host_blocks: int = 0
    arrivals: list[Arrival]
    variants: list[Variant] = []
    tour: list[Tour] = []
    questions: list[Question] = []
    order: int = 100
    name: str = ""

    @property
    def variant_names(self) -> list[str]:
        """The names by which its runs are asked for; [""] if there is only one way to serve it."""
        return [variant.name for variant in self.variants] or [""]


@dataclass(frozen=True)
class Setup:
    """How one variant is served."""

    config: EngineConfig
    serving: str
    reservation: str
    host_blocks: int


@dataclass(frozen=True)
class Submission:
    """One request: when it comes, and what it asks for."""

    step: int
    prompt: str | list[int]
    params: SamplingParams
    priority: int
    cache_salt: str


def setup_of(scenario: Scenario, variant: str) -> Setup:
    """What is served in a variant. Raises ConfigError or ScenarioError if it cannot be so."""
    if variant not in scenario.variant_names:
        raise ScenarioError(f"{scenario.name} has no variant {variant!r}, but {', '.join(scenario.variant_names)}")
    own = next((each for each in scenario.variants if each.name == variant), Variant(name="", title=""))
    options = scenario.engine | own.engine
    unknown = sorted(options.keys() - {field.name for field in fields(EngineConfig)})
    if unknown:
        raise ConfigError(f"[engine] has no option {unknown[0]!r}: the options are the attributes of EngineConfig")
    host_blocks = scenario.host_blocks if own.host_blocks is None else own.host_blocks
    serving, reservation = own.serving or scenario.serving, own.reservation or scenario.reservation
    return Setup(EngineConfig(**options), serving, reservation, host_blocks)


def submissions_of(scenario: Scenario) -> list[Submission]:
    """Every request, in order of arrival. Raises RequestError if a parameter is out of range."""
    found: list[Submission] = []
    for arrival in scenario.arrivals:
        for number in range(arrival.count):
            params = SamplingParams(max_tokens=_in_turn(arrival.max_tokens, number), **arrival.sampling)
            prompt: str | list[int] = arrival.prompt
            if scenario.runner == "scripted":
                length, common = _in_turn(arrival.prompt_tokens, number), arrival.shared_prefix
                own = OWN_TOKENS * (len(found) + 1)
                prompt = [*range(common), *range(own, own + length - common)]
            step = arrival.step + number * arrival.every
            found.append(Submission(step, prompt, params, arrival.priority, arrival.cache_salt))
    return sorted(found, key=lambda submission: submission.step)


def _in_turn(value: int | list[int], number: int) -> int:
    return value[number % len(value)] if isinstance(value, list) else value
