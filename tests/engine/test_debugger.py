"""Breakpoints and halting between the phases: stories of someone who watches the engine at work."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import EngineLoop, PagelensError, RequestError, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.condition import ConditionError
from pagelens.engine.debugger import Debugger
from pagelens.engine.events import BlockState, EngineContinued, EngineHalted, Phase, Why
from pagelens.engine.integrity import check_integrity, check_map

NUM_BLOCKS, BLOCK_SIZE = 16, 4
pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def runner() -> ShadowRunner:
    return ShadowRunner(NUM_BLOCKS, BLOCK_SIZE)


@pytest.fixture
def debugger(runner: ShadowRunner) -> Iterator[Debugger]:
    loop = EngineLoop(scripted_engine(NUM_BLOCKS, BLOCK_SIZE, runner, max_num_batched_tokens=32)).start()
    loop.halt()
    yield Debugger(loop)
    loop.stop()


def submit(debugger: Debugger, length: int = 6, max_tokens: int = 4, n: int = 1, first: int = 1) -> str:
    return debugger.loop.submit(list(range(first, first + length)), SamplingParams(max_tokens=max_tokens, n=n))


def run(debugger: Debugger) -> None:
    debugger.run()
    assert debugger.wait(10)


def halts(debugger: Debugger) -> list[tuple[str, str]]:
    return [(e.after, e.why) for e in debugger.loop.log.read(0) or [] if isinstance(e, EngineHalted)]


def check(debugger: Debugger) -> None:
    check_integrity(debugger.loop.engine)
    check_map(debugger.loop.engine, debugger.loop.log.snapshot())


def test_break_at_a_copy_and_see_it_pending_before_any_byte_moves(debugger: Debugger, runner: ShadowRunner) -> None:
    submit(debugger, length=6, n=3)  # the prompt ends in the middle of a block, which the samples share
    point = debugger.break_on("BlockCopied")
    run(debugger)
    assert debugger.position == "halted after plan of step 1"
    assert point.num_hits == 2 and [hit.breakpoint for hit in debugger.hits] == [point, point]
    first, second = (hit.event for hit in debugger.hits)
    assert isinstance(first, ev.BlockCopied) and isinstance(second, ev.BlockCopied)
    picture = debugger.loop.log.snapshot()
    assert picture.pending_copies == [(1, first.destination), (1, second.destination)]
    assert picture.sequences["A.0"].table == [0, first.destination] and picture.halted_after == "plan"
    slots = slice(first.destination * BLOCK_SIZE, (first.destination + 1) * BLOCK_SIZE)
    assert runner.slots[slots] == [None] * BLOCK_SIZE, "nothing has moved yet"
    check(debugger)
    before = list(runner.slots)
    time.sleep(0.05)
    assert runner.slots == before, "it stands"

    debugger.next_phase()
    assert debugger.position == "halted after launch of step 1" and debugger.hits == []
    source = runner.slots[1 * BLOCK_SIZE : 1 * BLOCK_SIZE + 2]
    assert runner.slots[slots][:2] == source != [None, None], "now it has"
    assert debugger.loop.log.snapshot().pending_copies == []
    check_integrity(debugger.loop.engine)
    run(debugger)
    assert not debugger.loop.engine.requests
    check(debugger)


def test_the_halt_names_the_event_that_it_is_for(debugger: Debugger) -> None:
    submit(debugger, n=2)
    debugger.break_on("BlockCopied")
    run(debugger)
    events = debugger.loop.log.read(0) or []
    assert isinstance(events[-1], EngineHalted) and events[-1].why == Why.USER_BREAKPOINT
    assert events[events[-1].cause] == debugger.hits[0].event


@pytest.mark.parametrize(
    ("condition", "after", "matched"),
    [
        ("RequestPreempted", Phase.PLAN, ev.RequestPreempted),
        ("block == 2", Phase.PLAN, ev.BlockAllocated),
        ("free < 1", Phase.PLAN, ev.BlockAllocated),
        ('request == "B" and BlockReleased', Phase.PLAN, ev.BlockReleased),
        ("StepLaunched and step == 2", Phase.LAUNCH, ev.StepLaunched),
        ('SequenceFinished and sequence == "A.0"', Phase.COMMIT, ev.SequenceFinished),
        ('state == "cached"', Phase.PLAN, ev.BlockReleased),
        ("lost_tokens > 0", Phase.PLAN, ev.RequestPreempted),
    ],
)
def test_each_condition_halts_at_the_end_of_its_phase(condition: str, after: Phase, matched: type) -> None:
    loop = EngineLoop(scripted_engine(6, BLOCK_SIZE)).start()
    loop.halt()
    debugger = Debugger(loop)
    for first in (1, 100):  # two that grow in a pool too small for both
        submit(debugger, 6, max_tokens=8, first=first)
    debugger.break_on(condition)
    run(debugger)
    assert loop.halted_after is after
    assert isinstance(debugger.hits[0].event, matched)
    if after is not Phase.LAUNCH:
        check(debugger)
    loop.stop()


def test_ref_count_tells_when_a_block_becomes_popular(debugger: Debugger) -> None:
    submit(debugger, n=4)
    debugger.break_on("ref_count > 2")
    run(debugger)
    event = debugger.hits[0].event
    assert isinstance(event, ev.BlockShared) and event.ref_count == 3
    assert debugger.loop.halted_after is Phase.COMMIT


def test_free_counts_blocks_as_the_pool_does(debugger: Debugger) -> None:
    debugger.break_on("free <= 13")
    submit(debugger, length=12, max_tokens=3)
    run(debugger)
    assert debugger.loop.log.snapshot().count(BlockState.USED) == 3
    assert debugger.loop.engine.manager.pool.num_free == 13


def test_keywords_say_the_same_as_text(debugger: Debugger) -> None:
    point = debugger.break_on(kind="BlockCopied", block=17)
    assert point.condition.text == "BlockCopied and block == 17"
    mixed = debugger.break_on("BlockCopied or BlockShared", request="A")
    assert mixed.condition.text == "(BlockCopied or BlockShared) and request == 'A'"
    with pytest.raises(ConditionError, match="unknown name 'blok'"):
        debugger.break_on(blok=17)
    with pytest.raises(ConditionError, match="the condition is empty"):
        debugger.break_on()
    assert debugger.breakpoints == [point, mixed]


def test_breakpoints_can_be_listed_disabled_enabled_and_removed(debugger: Debugger) -> None:
    copies, launches = debugger.break_on("BlockCopied"), debugger.break_on("StepLaunched")
    assert [str(point) for point in debugger.breakpoints] == [
        "1: BlockCopied (matched 0 times)",
        "2: StepLaunched (matched 0 times)",
    ]
    debugger.enable(copies.number, False)
    submit(debugger, n=2)
    run(debugger)
    assert debugger.hits[0].breakpoint is launches
    debugger.remove(launches.number)
    debugger.enable(copies.number)
    run(debugger)
    assert debugger.hits[0].breakpoint is copies
    assert str(copies) == "1: BlockCopied (matched once)"
    debugger.enable(copies.number, False)
    run(debugger)
    assert not debugger.loop.halted and not debugger.loop.engine.has_work
    with pytest.raises(PagelensError, match="there is no breakpoint 2; there are: 1"):
        debugger.remove(2)
    debugger.remove(1)
    with pytest.raises(PagelensError, match="there is no breakpoint 1; there are: none"):
        debugger.enable(1)


def test_a_breakpoint_looks_only_at_what_happens_after_it_was_set(debugger: Debugger) -> None:
    submit(debugger, n=2)
    debugger.run_until("BlockCopied")
    assert debugger.wait(10)
    debugger.break_on("BlockCopied")
    run(debugger)
    assert not debugger.loop.halted, "there was no second copy"


def test_stepping_through_the_phases(debugger: Debugger) -> None:
    submit(debugger, n=2)
    positions = []
    for _ in range(6):
        debugger.next_phase()
        positions.append(debugger.position)
    assert positions == [
        "halted after plan of step 0",
        "halted after launch of step 0",
        "halted before step 1",
        "halted after plan of step 1",
        "halted after launch of step 1",
        "halted before step 2",
    ]
    debugger.next_phase()
    debugger.step()  # the rest of the step
    assert debugger.position == "halted before step 3"
    assert halts(debugger)[1:4] == [("plan", "user_phase"), ("launch", "user_phase"), ("commit", "user_phase")]
    assert halts(debugger)[-1] == ("commit", "user_step")
    continued = [e.why for e in debugger.loop.log.read(0) or [] if isinstance(e, EngineContinued)]
    assert continued == ["user_phase"] * 7 + ["user_step"]
    check(debugger)


def test_a_step_ends_early_at_a_breakpoint(debugger: Debugger) -> None:
    submit(debugger)
    debugger.break_on("StepPlanned")
    debugger.step()
    assert debugger.position == "halted after plan of step 0"
    debugger.step()
    assert debugger.position == "halted before step 1"


def test_run_to_the_next_token_of_a_sequence(debugger: Debugger) -> None:
    submit(debugger, length=40, max_tokens=2)  # its prompt alone needs the budget of two steps
    debugger.loop.submit([7, 8], SamplingParams(max_tokens=9))
    debugger.step()
    debugger.run_to_token("A.0")
    assert debugger.wait(10)
    views = debugger.loop.log.snapshot().sequences
    assert len(views["A.0"].token_ids) == 41 and debugger.position == "halted before step 2"
    debugger.run_to_token("A.0")
    assert debugger.wait(10)
    assert debugger.loop.log.snapshot().sequences["A.0"].reason == "length"
    with pytest.raises(PagelensError, match=r"there is no unfinished sequence 'A\.0'; there are: B\.0"):
        debugger.run_to_token("A.0")


def test_the_awaited_sequence_may_end_without_a_token(debugger: Debugger) -> None:
    submit(debugger, max_tokens=400)
    debugger.step()
    debugger.next_phase()
    debugger.loop.abort("A")
    debugger.run_to_token("A.0")
    assert debugger.wait(10)
    assert debugger.loop.halted and debugger.loop.log.snapshot().sequences["A.0"].reason == "abort"


def test_run_until_is_a_breakpoint_for_one_halt(debugger: Debugger) -> None:
    submit(debugger, n=2, max_tokens=6)
    debugger.run_until("BlockCopied")
    assert debugger.wait(10)
    assert debugger.hits[0].breakpoint is None and isinstance(debugger.hits[0].event, ev.BlockCopied)
    assert debugger.breakpoints == [] and not debugger.loop.breakpoints.armed
    debugger.run_until("StepFailed")
    assert debugger.wait(10)
    assert not debugger.loop.engine.has_work
    debugger.halt()
    assert not debugger.loop.breakpoints.armed, "any halt ends the wait"


def test_an_engine_that_runs_can_be_told_where_to_halt(debugger: Debugger) -> None:
    submit(debugger, max_tokens=50)
    debugger.loop.steps_per_second = 100
    debugger.run()
    debugger.run_until("TokensGenerated")
    assert debugger.wait(10)
    assert debugger.loop.halted_after is Phase.COMMIT and debugger.loop.engine.has_work


def test_an_arrival_can_be_waited_for_between_two_steps(debugger: Debugger) -> None:
    debugger.break_on("RequestArrived and request == 'B'")
    debugger.run()
    submit(debugger, max_tokens=2)
    assert debugger.wait(10)
    assert not debugger.loop.halted
    submit(debugger)
    assert debugger.loop.halted and debugger.loop.log.snapshot().totals["StepCommitted"] == 2
    run(debugger)
    submit(debugger)
    assert not debugger.loop.halted


def test_what_is_asked_in_the_middle_of_a_step_happens_when_it_is_over(debugger: Debugger) -> None:
    loop = debugger.loop
    submit(debugger, n=2, max_tokens=8)
    submit(debugger, max_tokens=400, first=50)
    debugger.run_until("BlockCopied")
    assert debugger.wait(10)
    before = loop.log.snapshot()

    outputs: dict[str, list[Any]] = {}
    started = time.perf_counter()

    def client(number: int) -> None:
        mine: list[Any] = []
        name = loop.submit([number] * 5, SamplingParams(max_tokens=3), mine.append)
        outputs[name] = mine

    clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    loop.abort("B")
    loop.abort("B")
    ids = loop.submit_all([([9], SamplingParams(max_tokens=1)), ([8], SamplingParams(max_tokens=1))])
    loop.abort("G")
    with pytest.raises(RequestError, match="the prompt is empty"):
        loop.submit([], SamplingParams())
    with pytest.raises(RequestError, match="the prompt is empty"):
        loop.submit_all([([1], SamplingParams()), ([], SamplingParams())])
    with pytest.raises(RequestError, match="there is no unfinished request 'Z'"):
        loop.abort("Z")
    assert time.perf_counter() - started < 2, "nobody waited for the step"
    assert sorted(outputs) == ["C", "D", "E"] and ids == ["F", "G"]
    assert loop.queued[-2:] == ["F", "G"] and len(loop.queued) == 5
    now = loop.log.snapshot()
    assert loop.halted_after is Phase.PLAN and now.pending_copies == before.pending_copies
    assert now.sequences == before.sequences, "the step is as it was"
    check(debugger)

    debugger.step()
    picture = loop.log.snapshot()
    assert loop.queued == []
    assert picture.sequences["B.0"].reason == picture.sequences["G.0"].reason == "abort"
    assert {name: picture.sequences[f"{name}.0"].status for name in "CDEF"} == dict.fromkeys("CDEF", "waiting")
    check(debugger)
    run(debugger)
    assert not loop.engine.requests
    assert [[o.token_id for o in outputs[name]] for name in "CDE"] == [[5, 6, 7]] * 3
    check(debugger)


def test_a_stream_left_in_the_middle_of_a_step_is_aborted_when_it_is_over(debugger: Debugger) -> None:
    loop = debugger.loop
    stream = loop.stream([1, 2], SamplingParams(max_tokens=400))
    debugger.step()
    next(stream)
    debugger.next_phase()
    stream.close()  # type: ignore[attr-defined]
    assert list(loop.engine.requests) == ["A"]
    debugger.step()
    assert not loop.engine.requests


def test_stopping_in_the_middle_of_a_step_finishes_it_and_tells_everyone(debugger: Debugger) -> None:
    loop = debugger.loop
    old, new = [], []
    loop.submit([1, 2], SamplingParams(max_tokens=400), old.append)
    debugger.break_on("StepPlanned")
    run(debugger)
    loop.submit([3], SamplingParams(max_tokens=400), new.append)
    loop.stop()
    assert [output.finish_reason for output in old] == [None, "abort"]
    assert [output.finish_reason for output in new] == ["abort"]
    check(debugger)
    with pytest.raises(RequestError, match="the engine is not running"):
        debugger.step()


def test_a_launch_that_fails_after_a_halt_ends_its_sequences_only(debugger: Debugger, runner: ShadowRunner) -> None:
    submit(debugger, n=2)
    debugger.break_on("BlockCopied")
    run(debugger)
    name = debugger.loop.submit([5], SamplingParams(max_tokens=2))
    runner.fail_next = True
    debugger.next_phase()
    assert debugger.position == "halted before step 2", "what fails has no launch to stand after"
    picture = debugger.loop.log.snapshot()
    assert picture.sequences["A.0"].reason == "error" and picture.pending_copies == []
    run(debugger)
    assert debugger.loop.log.snapshot().sequences[f"{name}.0"].reason == "length"
    check(debugger)


def test_an_engine_that_breaks_down_ends_every_wait(debugger: Debugger) -> None:
    outputs: list[Any] = []
    submit(debugger)
    debugger.next_phase()
    debugger.loop.submit([1], SamplingParams(), outputs.append)
    debugger.loop.engine.scheduler.commit = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(RequestError, match="the engine has stopped: division by zero"):
        debugger.step()
    assert debugger.wait(10) and debugger.position == "broken down"
    assert [output.finish_reason for output in outputs] == ["error"]


def test_moves_need_a_halted_engine_with_something_to_do(debugger: Debugger) -> None:
    with pytest.raises(PagelensError, match="there is nothing to do: send a request first"):
        debugger.next_phase()
    debugger.run()
    with pytest.raises(PagelensError, match="the engine is running: halt it before asking for one phase"):
        debugger.next_phase()
    assert debugger.position == "idle before step 0"


def test_halting_in_the_middle_of_a_step_stays_there(debugger: Debugger) -> None:
    submit(debugger)
    debugger.next_phase()
    debugger.halt()
    assert debugger.position == "halted after plan of step 0"
    assert halts(debugger) == [("commit", "user_halt"), ("plan", "user_phase")]


def test_the_answers_are_the_same_with_and_without_halts(runner: ShadowRunner) -> None:
    def tokens(condition: str) -> dict[str, list[int]]:
        loop = EngineLoop(scripted_engine(8, BLOCK_SIZE, ShadowRunner(8, BLOCK_SIZE))).start()
        loop.halt()
        debugger = Debugger(loop)
        if condition:
            debugger.break_on(condition)
        for number in range(4):
            submit(debugger, 5, 6, n=2, first=100 * number + 1)
        while loop.engine.has_work:
            run(debugger)
            if loop.halted_after is Phase.PLAN:
                check(debugger)
        views = loop.log.snapshot().sequences
        loop.stop()
        return {name: view.token_ids for name, view in views.items()}

    plain = tokens("")
    assert len(plain) == 8
    assert tokens("StepPlanned") == tokens("TokensWritten or TokensGenerated") == plain


def test_an_engine_without_breakpoints_does_not_look(debugger: Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger.loop.breakpoints, "look", lambda: 1 / 0)
    submit(debugger)
    run(debugger)
    assert debugger.loop.failure is None and not debugger.loop.engine.requests


def test_a_debugger_needs_events() -> None:
    engine = scripted_engine()
    engine.log.enabled = False
    with pytest.raises(PagelensError, match="keeps no events"):
        Debugger(EngineLoop(engine))


def test_a_listener_cannot_wait_for_the_thread_it_runs_on(debugger: Debugger) -> None:
    errors: list[Exception] = []

    def listener(_: Any) -> None:
        try:
            debugger.halt()
        except PagelensError as error:
            errors.append(error)

    debugger.loop.submit([1], SamplingParams(max_tokens=1), listener)
    run(debugger)
    assert "cannot wait for itself" in str(errors[0])
