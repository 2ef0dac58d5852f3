"""How the eviction lab is graded: from the event log of the student's run, not from what the student's code says."""

from functools import cache

from workload import NUM_REQUESTS, best_hit_rate, build, hit_rate, same_story, serve

from pagelens.engine import events as ev
from pagelens.engine.kvtrace import Trace
from pagelens.viz.inspection import Inspection
from pagelens.viz.lab import Check, StudentRun

RUNS = "runs the whole workload"
NEAR_BEST = 0.8
"""Share of the way from the default's hit rate to the best possible that earns the last points."""


def grade(run: StudentRun) -> list[Check]:
    """Ten points in five checks."""
    trace, problem = run.trace, run.problem
    if trace is not None:
        served = sum(isinstance(event, ev.SequenceFinished) for event in trace.events)
        if served < NUM_REQUESTS:
            problem = f"it ended after {served} of {NUM_REQUESTS} requests, without an error: is there an exit in it?"
    if trace is None or problem:
        rest = {
            "chooses only what is offered": 1,
            "the log is sound": 2,
            "finds more than the default": 3,
            "comes near the best": 2,
        }
        why = "not graded, since the run did not end"
        return [Check(RUNS, 2, False, problem), *(Check(name, points, False, why) for name, points in rest.items())]
    offered = run.notes or "every answer was one of the cached blocks"
    sound = _sound(trace)
    mine, (default, best) = hit_rate(trace.events), _baselines()
    goal = default + NEAR_BEST * (best - default)
    numbers = f"{mine:.1%} of all prompt tokens; the default finds {default:.1%}"
    return [
        Check(RUNS, 2, True, f"{NUM_REQUESTS} requests were served"),
        Check("chooses only what is offered", 1, not run.notes, offered),
        sound,
        Check("finds more than the default", 3, sound.passed and mine > default + 0.01, numbers),
        Check(
            "comes near the best",
            2,
            sound.passed and mine >= goal,
            f"{mine:.1%}; the goal is {goal:.1%}, the oracle finds {best:.1%}",
        ),
    ]


@cache
def _baselines() -> tuple[float, float]:
    """Hit rates of the default policy and of the oracle."""
    return hit_rate(serve(build(""))), best_hit_rate()


def _sound(trace: Trace) -> Check:
    name, points = "the log is sound", 2
    violations = Inspection.of(trace).violations
    if violations:
        return Check(name, points, False, f"invariants are broken, the first: {violations[0]}")
    if not same_story(trace.events):
        return Check(name, points, False, "the engine, given these choices, writes another log: was it tampered with?")
    return Check(name, points, True, "the invariants hold, and the choices lead to this very log")
