"""The engine of a scenario, never the one that is served: real or scripted, continuous, static or contiguous."""

import dataclasses
from collections import deque
from collections.abc import Iterator

from pagelens.engine import Engine
from pagelens.engine.policies import load_policy
from pagelens.engine.request import Sequence
from pagelens.engine.runner import ScriptedRunner
from pagelens.engine.static_scheduler import StaticScheduler

from .contiguous_run import ContiguousRun
from .scenario import Scenario, Setup, Submission, submissions_of


def engine_for(scenario: Scenario, setup: Setup, kernel: str) -> Engine | ContiguousRun:
    """What serves a variant; `kernel` is taken where the scenario says "auto". Raises ConfigError, ModelError."""
    if setup.serving == "contiguous":
        return ContiguousRun(setup)
    config = setup.config
    if config.kernel == "auto":
        config = dataclasses.replace(config, kernel=kernel)
    script = ScriptedRunner(scripted_token) if scenario.runner == "scripted" else None
    engine = Engine(config, runner=script, scripted_host_blocks=setup.host_blocks)
    if setup.serving == "static":
        engine.scheduler = StaticScheduler(config, engine.manager, load_policy(config.policy), engine.log)
    return engine


def steps_of(engine: Engine | ContiguousRun, scenario: Scenario) -> Iterator[None]:
    """Let the requests come in their steps, and yield after each step. Raises RequestError if one cannot be served."""
    coming = deque(submissions_of(scenario))
    while coming or engine.has_work:
        while coming and coming[0].step <= engine.num_steps:
            _submit(engine, coming.popleft())
        engine.step()
        yield


def scripted_token(sequence: Sequence, sample_index: int) -> int:
    """A token that depends on the request, the sample and the position, so that no two answers are alike."""
    return (sequence.request.arrival + 1) * 1_000_003 + sample_index * 10_007 + sequence.num_tokens


def _submit(engine: Engine | ContiguousRun, submission: Submission) -> None:
    if isinstance(engine, ContiguousRun):
        engine.add(submission)
        return
    prompt, params, salt = submission.prompt, submission.params, submission.cache_salt
    engine.add_request(prompt, params, priority=submission.priority, cache_salt=salt)
