"""Reads a scenario from its file, and says what is wrong with it, down to every condition and sampling parameter."""

import tomllib
from dataclasses import fields
from pathlib import Path

import msgspec

from pagelens.engine import PagelensError, SamplingParams
from pagelens.engine.condition import Condition
from pagelens.engine.events import EVENT_TYPES

from .scenario import (
    COUNT,
    OWN_TOKENS,
    Arrival,
    Question,
    Scenario,
    ScenarioError,
    Setup,
    Stop,
    Tour,
    setup_of,
    submissions_of,
)

SCENARIOS = Path(__file__).parents[1] / "tutorials" / "scenarios"
MOST_REQUESTS, LAST_ARRIVAL = 5000, 5000
_SAMPLING = {field.name for field in fields(SamplingParams)}


def read_scenario(path: Path) -> Scenario:
    """The scenario in a file. Raises ScenarioError with the file's name if something in it is wrong."""
    try:
        scenario = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Scenario)
        scenario.name = path.stem
        _check(scenario)
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, PagelensError) as error:
        raise ScenarioError(f"{path.name}: {error}") from None
    return scenario


def _check(scenario: Scenario) -> None:
    """Raises PagelensError if a value is out of range, or a condition can never match."""
    for number, arrival in enumerate(scenario.arrivals, start=1):
        _check_arrival(scenario, arrival, f"arrival {number}")
    total = sum(arrival.count for arrival in scenario.arrivals)
    _require(1 <= total <= MOST_REQUESTS, f"there are {total} requests, allowed are 1 to {MOST_REQUESTS}")
    submissions_of(scenario)
    names = scenario.variant_names
    _require(len(set(names)) == len(names), f"two variants have the same name: {', '.join(names)}")
    for name in names:
        _check_setup(scenario, setup_of(scenario, name), f"variant {name}" if name else "the scenario")
    time_is_real = scenario.clock == "steps" or scenario.runner == "real"
    _require(time_is_real, "clock is 'time', but a script takes none: use clock = \"steps\", or the real runner")
    Condition(scenario.picture)
    stops: list[tuple[str, Stop, str]] = [(f"tour {i}", t, t.when) for i, t in enumerate(scenario.tour, 1)]
    stops += [(f"question {i}", q, q.before) for i, q in enumerate(scenario.questions, 1)]
    for what, stop, condition in stops:
        _require(stop.nth >= 1, f"{what}: nth is {stop.nth}, allowed is at least 1")
        _require(not stop.variant or stop.variant in names, f"{what}: there is no variant {stop.variant!r}")
        kinds = Condition(condition).kinds
        if isinstance(stop, Question):
            _check_question(stop, what, Condition(stop.of).kinds if stop.of else kinds)
        elif isinstance(stop, Tour):
            for field in stop.highlight:
                _require_field(field, kinds, f"{what}: highlight")


def _check_arrival(scenario: Scenario, arrival: Arrival, what: str) -> None:
    last = arrival.step + (arrival.count - 1) * arrival.every
    _require(arrival.step >= 0 and arrival.every >= 0, f"{what}: step and every are 0 or more")
    _require(arrival.count >= 1, f"{what}: count is {arrival.count}, allowed is at least 1")
    _require(last <= LAST_ARRIVAL, f"{what}: the last request comes in step {last}, allowed is {LAST_ARRIVAL}")
    unknown = sorted(arrival.sampling.keys() - (_SAMPLING - {"max_tokens"}))
    _require(not unknown, f"{what}: sampling has no parameter {', '.join(unknown)}; they are those of SamplingParams")
    for values in (arrival.prompt_tokens, arrival.max_tokens):
        _require(values != [], f"{what}: a list of lengths is empty")
    if scenario.runner == "real":
        scripted = arrival.prompt_tokens != 0 or arrival.shared_prefix != 0
        _require(not scripted, f'{what}: prompt_tokens and shared_prefix are for runner = "scripted": give a prompt')
        _require(bool(arrival.prompt), f"{what}: the prompt is empty")
        return
    _require(not arrival.prompt, f"{what}: a script reads no prompt: give prompt_tokens")
    lengths = arrival.prompt_tokens if isinstance(arrival.prompt_tokens, list) else [arrival.prompt_tokens]
    allowed = f"{max(1, arrival.shared_prefix)} (shared_prefix) to {OWN_TOKENS - 1}"
    for length in lengths:
        _require(
            max(1, arrival.shared_prefix) <= length < OWN_TOKENS,
            f"{what}: prompt_tokens is {length}, allowed is {allowed}",
        )
    _require(arrival.shared_prefix >= 0, f"{what}: shared_prefix is {arrival.shared_prefix}, allowed is 0 or more")


def _check_setup(scenario: Scenario, setup: Setup, what: str) -> None:
    config, scripted = setup.config, scenario.runner == "scripted"
    sized = config.num_gpu_blocks_override is not None and (not scripted or config.max_model_len is not None)
    needed = "num_gpu_blocks_override" + (" and max_model_len" if scripted else "")
    _require(sized, f"{what}: [engine] must give {needed}, so that the run is the same on every machine")
    _require(not config.model, f"{what}: model is {config.model!r}, but a scenario runs the embedded one: leave it out")
    only_scripted = scripted or (setup.serving != "contiguous" and setup.host_blocks == 0)
    _require(only_scripted, f'{what}: contiguous serving and host_blocks are for runner = "scripted"')
    _require(setup.host_blocks >= 0, f"{what}: host_blocks is {setup.host_blocks}, allowed is 0 or more")
    if setup.serving == "contiguous":
        alone = all(submission.params.most_branches == 1 for submission in submissions_of(scenario))
        _require(alone, f"{what}: contiguous memory cannot share: n is 1 and beam_width 0 there")


def _check_question(question: Question, what: str, kinds: frozenset[str]) -> None:
    if question.answer == COUNT:
        _require(
            question.ask == "number" and bool(question.of), f'{what}: answer = "count" needs ask = "number" and `of`'
        )
    else:
        _require_field(question.answer, kinds, f"{what}: answer")
    is_choice = question.ask == "choice"
    _require(is_choice == bool(question.choices), f'{what}: choices are for ask = "choice", which needs at least two')
    _require(not is_choice or len(question.choices) >= 2, f"{what}: there is one choice, allowed are two or more")


def _require_field(field: str, kinds: frozenset[str], what: str) -> None:
    for kind in sorted(kinds):
        own = EVENT_TYPES[kind].__struct_fields__
        _require(field in own, f"{what} is {field!r}, but {kind} has only {', '.join(own)}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ScenarioError(message)
