"""Another engine takes over a loop: in whatever state the old one is, nobody waits for ever, and a new run begins."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scripted import scripted_engine

from pagelens.engine import EngineLoop, RequestError, SamplingParams
from pagelens.engine.debugger import Debugger
from pagelens.engine.integrity import check_integrity
from pagelens.engine.output_processor import SequenceOutput


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    loop = EngineLoop(scripted_engine(num_blocks=64), steps_per_second=200).start()
    yield loop
    loop.stop()


def serves(loop: EngineLoop) -> bool:
    outputs = list(loop.stream([1, 2, 3], SamplingParams(max_tokens=4)))
    return [output.token_id for output in outputs] == [3, 4, 5, 6]


def test_what_was_unfinished_is_aborted_and_the_new_engine_serves(loop: EngineLoop) -> None:
    ends: list[SequenceOutput] = []
    loop.submit([1, 2, 3], SamplingParams(max_tokens=400), ends.append)
    old = loop.log
    loop.replace_engine(scripted_engine(num_blocks=32))
    assert ends[-1].finish_reason == "abort"
    assert old.snapshot().sequences["A.0"].reason == "abort"
    assert loop.log is not old and loop.log.header.run != old.header.run and loop.log.header.num_blocks == 32
    assert serves(loop)
    check_integrity(loop.engine)


@pytest.mark.parametrize("phases", [0, 1, 2])
def test_a_halted_engine_gives_way_too(loop: EngineLoop, phases: int) -> None:
    loop.halt()
    ends: list[SequenceOutput] = []
    loop.submit([1, 2, 3], SamplingParams(max_tokens=400), ends.append)
    for _ in range(phases):
        loop.next_phase()
    loop.submit([4, 5, 6], SamplingParams(max_tokens=400), ends.append)
    old = loop.log
    Debugger(loop).break_on("TokensGenerated")
    loop.replace_engine(scripted_engine(num_blocks=32))
    assert serves(loop)
    assert loop.log is not old and not loop.halted and not Debugger(loop).breakpoints
    assert sum(output.finish_reason == "abort" for output in ends) == 2


def test_who_waits_for_a_step_is_answered(loop: EngineLoop) -> None:
    loop.halt()
    loop.submit([1, 2, 3], SamplingParams(max_tokens=4))
    plan, may_go_on = loop.engine.plan, threading.Event()

    def slow_plan() -> Any:
        may_go_on.wait(10)
        return plan()

    loop.engine.plan = slow_plan  # type: ignore[method-assign]
    stepping = threading.Thread(target=loop.step)
    stepping.start()
    time.sleep(0.05)
    replacing = threading.Thread(target=loop.replace_engine, args=(scripted_engine(),))
    replacing.start()
    may_go_on.set()
    for thread in (stepping, replacing):
        thread.join(10)
        assert not thread.is_alive()
    assert serves(loop)


def test_an_engine_that_broke_down_can_be_replaced(loop: EngineLoop) -> None:
    def broken() -> Any:
        raise RuntimeError("no such luck")

    loop.engine.plan = broken  # type: ignore[method-assign]
    ends: list[SequenceOutput] = []
    loop.submit([1, 2, 3], SamplingParams(max_tokens=4), ends.append)
    assert loop.wait_until_still(10) and loop.failure is not None
    assert ends[-1].finish_reason == "error"
    loop.replace_engine(scripted_engine())
    assert loop.failure is None and serves(loop)


def test_an_engine_that_breaks_down_in_its_last_step_is_replaced_all_the_same(loop: EngineLoop) -> None:
    loop.halt()
    loop.submit([1, 2, 3], SamplingParams(max_tokens=4))
    loop.next_phase()

    def broken(*_: Any) -> Any:
        raise RuntimeError("no such luck")

    loop.engine.commit = broken  # type: ignore[method-assign]
    loop.replace_engine(scripted_engine())
    assert serves(loop) and loop.failure is None


def test_a_loop_that_is_stopped_says_so() -> None:
    loop = EngineLoop(scripted_engine()).start()
    loop.stop()
    with pytest.raises(RequestError, match="not running"):
        loop.replace_engine(scripted_engine())


def test_no_more_requests_than_asked_for() -> None:
    loop = EngineLoop(scripted_engine(), max_requests=2).start()
    loop.halt()
    requests: list[tuple[str | list[int], SamplingParams]] = [([1, 2], SamplingParams(max_tokens=2))] * 2
    loop.submit(*requests[0])
    with pytest.raises(RequestError, match="1 requests are unfinished and 2 more would join, but at most 2 may be"):
        loop.submit_all(requests)
    loop.next_phase()
    loop.submit(*requests[0])
    with pytest.raises(RequestError, match="2 requests are unfinished and 1 more"):
        loop.submit(*requests[0])
    loop.run()
    assert loop.wait_until_still(10)
    assert loop.submit(*requests[0]) == "C"
    loop.stop()
