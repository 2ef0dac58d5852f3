"""The engine on its own thread: submit, stream, abort, halt, step and run from any other."""

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from scripted import scripted_engine

from pagelens.engine import EngineLoop, PagelensError, RequestError, SamplingParams
from pagelens.engine.events import EngineHalted, StepCommitted
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.output_processor import SequenceOutput


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    loop = EngineLoop(scripted_engine(num_blocks=64)).start()
    yield loop
    loop.stop()


def steps(loop: EngineLoop) -> int:
    return loop.log.snapshot().totals.get("StepCommitted", 0)


def test_stream_yields_tokens_as_they_come(loop: EngineLoop) -> None:
    outputs = list(loop.stream([1, 2, 3], SamplingParams(max_tokens=4)))
    assert [output.token_id for output in outputs] == [3, 4, 5, 6]
    assert outputs[-1].finish_reason == "length"


def test_stream_of_several_samples_ends_with_the_last_of_them(loop: EngineLoop) -> None:
    outputs = list(loop.stream([1, 2, 3], SamplingParams(max_tokens=4, n=3)))
    assert len(outputs) == 12
    assert sum(output.finish_reason is not None for output in outputs) == 3


def test_leaving_a_stream_early_aborts_the_request(loop: EngineLoop) -> None:
    loop.steps_per_second = 100
    for output in loop.stream([1, 2, 3], SamplingParams(max_tokens=400)):
        assert output.token_id is not None
        break
    assert not loop.engine.requests
    assert loop.log.snapshot().sequences["A.0"].reason == "abort"


def test_many_threads_submit_at_once(loop: EngineLoop) -> None:
    finished: list[int] = []

    def client(number: int) -> None:
        finished.append(len(list(loop.stream([number] * 5, SamplingParams(max_tokens=10)))))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert finished == [10] * 12
    loop.halt()
    check_integrity(loop.engine)
    check_map(loop.engine, loop.log.snapshot())


def test_halt_stops_one_step_moves_by_one_and_run_goes_on(loop: EngineLoop) -> None:
    loop.halt()
    loop.submit([1, 2, 3], SamplingParams(max_tokens=50))
    assert loop.halted and steps(loop) == 0
    loop.step()
    assert steps(loop) == 1
    loop.step()
    assert steps(loop) == 2
    assert loop.log.snapshot().halted_after == "commit"
    loop.run()
    while loop.engine.has_work:
        time.sleep(0.01)
    assert steps(loop) == 50
    assert loop.log.snapshot().halted_after == ""


def test_a_step_needs_a_halted_engine_with_work(loop: EngineLoop) -> None:
    with pytest.raises(PagelensError, match="the engine is running: halt it"):
        loop.step()
    loop.halt()
    with pytest.raises(PagelensError, match="there is nothing to do: send a request first"):
        loop.step()


def test_halting_twice_is_halting_once(loop: EngineLoop) -> None:
    loop.halt()
    loop.halt()
    assert loop.log.snapshot().totals["EngineHalted"] == 1
    assert isinstance(loop.log.read(0)[-1], EngineHalted)


def test_bad_requests_raise_where_they_were_made(loop: EngineLoop) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        loop.submit([], SamplingParams())
    with pytest.raises(RequestError, match="there is no unfinished request 'Z'"):
        loop.abort("Z")
    assert len(list(loop.stream([1], SamplingParams(max_tokens=2)))) == 2


def test_the_speed_limit_is_kept_and_commands_are_answered_meanwhile(loop: EngineLoop) -> None:
    loop.steps_per_second = 2
    loop.submit([1], SamplingParams(max_tokens=400))
    started = time.monotonic()
    while steps(loop) < 2:
        time.sleep(0.01)
    assert time.monotonic() - started >= 0.4
    loop.halt()
    times = [event.t for event in loop.log.read(0) if isinstance(event, StepCommitted)]
    assert all(later - earlier >= 0.4e9 for earlier, later in itertools.pairwise(times))


def test_a_listener_that_raises_is_dropped_and_the_others_go_on(loop: EngineLoop) -> None:
    def broken(output: SequenceOutput) -> None:
        raise KeyError("mine")

    with pytest.warns(UserWarning, match=r"the listener of request A raised KeyError\('mine'\) and is told no more"):
        loop.submit([1], SamplingParams(max_tokens=3), broken)
        assert len(list(loop.stream([1], SamplingParams(max_tokens=9)))) == 9


def test_a_stream_of_beams_ends_with_the_best_text(loop: EngineLoop) -> None:
    outputs = list(loop.stream([1, 2], SamplingParams(max_tokens=4, beam_width=3)))
    assert [output.finish_reason for output in outputs if output.finish_reason] == ["length"]
    assert len(list(loop.stream([1], SamplingParams(max_tokens=2)))) == 2


def test_stop_ends_the_thread_and_every_stream() -> None:
    loop = EngineLoop(scripted_engine(num_blocks=64), steps_per_second=5).start()
    stream = loop.stream([1], SamplingParams(max_tokens=400))
    next(stream)
    loop.stop()
    assert list(stream)[-1].finish_reason == "abort"
    with pytest.raises(RequestError, match="the engine is not running"):
        loop.submit([1], SamplingParams())


def test_an_engine_that_breaks_down_says_so_and_hangs_nobody() -> None:
    loop = EngineLoop(scripted_engine()).start()
    loop.engine.scheduler.plan = lambda: 1 / 0  # type: ignore[method-assign]
    outputs = list(loop.stream([1], SamplingParams()))
    assert [output.finish_reason for output in outputs] == ["error"]
    with pytest.raises(RequestError, match="the engine has stopped: division by zero"):
        loop.submit([1], SamplingParams())
    loop.stop()
