"""The page's commands for moving the engine, on a real one."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from scripted import scripted_engine

from pagelens.engine import EngineLoop, PagelensError, SamplingParams
from pagelens.viz.access import Role, Visitor
from pagelens.viz.commands import Commands

INSTRUCTOR = Visitor("teacher", Role.INSTRUCTOR)


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    loop = EngineLoop(scripted_engine(16, 4)).start()
    loop.halt()
    yield loop
    loop.stop()


def send(loop: EngineLoop, command: str, **fields: Any) -> dict[str, Any]:
    return Commands(loop).execute(msgspec.json.encode({"command": command, **fields}), INSTRUCTOR)


def test_run_to_an_event_then_phase_by_phase(loop: EngineLoop) -> None:
    loop.submit([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=3, n=2))
    assert send(loop, "run_until", condition="BlockCopied") == {}
    assert loop.wait_until_still(10) and loop.halted_after == "plan"
    send(loop, "next_phase")
    assert loop.halted_after == "launch"
    send(loop, "step")
    assert loop.halted_after == "commit"


def test_run_to_the_next_token(loop: EngineLoop) -> None:
    loop.submit([1, 2, 3], SamplingParams(max_tokens=3))
    send(loop, "run_to_token", sequence="A.0")
    assert loop.wait_until_still(10)
    assert len(loop.log.snapshot().sequences["A.0"].token_ids) == 4


def test_a_halted_step_does_not_hold_up_those_who_submit_or_abort(loop: EngineLoop) -> None:
    loop.submit([1, 2, 3], SamplingParams(max_tokens=3))
    send(loop, "next_phase")
    loop.engine.tokenize = lambda prompt: [len(prompt)]  # type: ignore[method-assign,assignment]
    assert send(loop, "submit", prompt="x") == {"requests": ["B"]}
    assert send(loop, "submit_mixed") == {"requests": list("CDEFGHIJ")}
    assert send(loop, "abort", request="C") == {}
    assert send(loop, "halt") == {} and loop.halted_after == "plan"


@pytest.mark.parametrize(
    ("command", "fields", "words"),
    [
        ("run_until", {"condition": "blok == 1"}, "unknown name 'blok'"),
        ("run_until", {}, "condition"),
        ("run_to_token", {"sequence": "A.0"}, "there is no unfinished sequence 'A.0'"),
        ("next_phase", {}, "there is nothing to do"),
        ("trace", {"sequence": "A.0"}, "a scripted engine runs no kernel"),
        ("trace", {"sequence": "A.0", "heads": 1}, "unknown field `heads`"),
    ],
)
def test_what_cannot_be_followed_is_refused(loop: EngineLoop, command: str, fields: Any, words: str) -> None:
    with pytest.raises(PagelensError, match=words):
        send(loop, command, **fields)
    assert loop.halted
