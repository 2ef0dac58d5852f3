"""What `pagelens scenario check` says: each variant is run, and each stop named, or said to be missing."""

from collections.abc import Iterator

from .moments import Moment
from .scenario import Scenario, ScenarioError
from .scenario_runs import ScenarioRun, finished_run


def report(scenario: Scenario, kernel: str) -> Iterator[str]:
    """A line for each stop. Raises ScenarioError if a run fails, or something that the file names never comes."""
    for variant in scenario.variant_names:
        run = finished_run(scenario, variant, kernel)
        yield f"{variant or scenario.name}: {run.num_events} events of {run.num_steps} steps"
        yield from (f"  {_line(scenario, moment)}" for moment in run.moments.found)
        _require_all(scenario, run, variant or scenario.name)


def _line(scenario: Scenario, moment: Moment) -> str:
    if "question" in moment:
        question = scenario.questions[moment["question"]]
        answers = " or ".join(str(answer) for answer in moment["answers"])
        return f"question {moment['question'] + 1} before event {moment['seq']}: {answers}   ({question.text})"
    if "tour" in moment:
        return f"tour {moment['tour'] + 1} after event {moment['seq']}"
    return f"picture after event {moment['seq']}"


def _require_all(scenario: Scenario, run: ScenarioRun, name: str) -> None:
    if run.moments.missing:
        raise ScenarioError(f"{name}: {'; '.join(run.moments.missing)}")
    for moment in run.moments.found:
        if "question" not in moment:
            continue
        what, question = f"{name}: question {moment['question'] + 1}", scenario.questions[moment["question"]]
        if not moment["answers"]:
            raise ScenarioError(f"{what} has no answer: no event of its step matches `of`")
        strangers = [str(answer) for answer in moment["answers"] if str(answer) not in question.choices]
        if question.ask == "choice" and strangers:
            raise ScenarioError(f"{what}: the answer is {strangers[0]!r}, which is none of its choices")
