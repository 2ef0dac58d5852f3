"""EngineLoop: the engine on a thread of its own, for whoever must not wait for it.

any thread                          the engine's thread
submit, abort, halt, run, ...  ---> commands, between two steps ---> plan | launch | commit ---> listeners
                               <--- the answer, or the error             ^        ^       ^
                                                                         it may stand still here

While it stands still in the middle of a step it goes on answering, at once: a request is checked, named and queued, an
abort is noted, and both are carried out when the step is over. So nobody waits for an engine that somebody halted.
"""

import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from . import events as ev
from .breakpoints import Breakpoints
from .condition import Condition
from .engine import Engine
from .errors import PagelensError, RequestError
from .event_log import EventLog
from .events import Phase, Why
from .mailbox import Command, Mailbox
from .output_processor import SequenceOutput
from .queued_requests import QueuedRequests
from .request import FinishReason, SequenceStatus
from .sampling_params import SamplingParams

Listener = Callable[[SequenceOutput], None]


class EngineLoop:
    """Steps the engine while it has work and is not halted. All methods may be called from any thread but its own.

    `steps_per_second` limits the speed, None is as fast as it goes. `breakpoints` tell for which events to halt
    (a `Debugger` sets them). `failure` is set if the engine itself broke down; everything asked afterwards is answered
    with it. `max_requests` is the most unfinished requests; None is any number.
    """

    def __init__(self, engine: Engine, steps_per_second: float | None = None, max_requests: int | None = None) -> None:
        self.engine = engine
        self.max_requests = max_requests
        self.steps_per_second = steps_per_second
        self.breakpoints = Breakpoints(engine.log)
        self.failure: Exception | None = None
        self._halted_after: Phase | None = None
        self._goal: Why | None = None  # user_phase or user_step: halt when that is over
        self._in_step = False
        self._stopping = False
        self._successor: Engine | None = None  # takes over when the step is over
        self._mailbox = Mailbox(lambda: RequestError("the engine is not running: start() the loop first"))
        self._queued = QueuedRequests(engine)
        self._listeners: dict[str, Listener] = {}
        self._arrivals: list[Future[None]] = []  # of those who wait for the next halt
        self._still = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def log(self) -> EventLog:
        """The events of the run."""
        return self.engine.log

    @property
    def halted(self) -> bool:
        """Whether the engine stands still although it may have work."""
        return self._halted_after is not None

    @property
    def halted_after(self) -> Phase | None:
        """The phase after which the engine stands still: commit is between two steps; None if it is not halted."""
        return self._halted_after

    @property
    def queued(self) -> list[str]:
        """Requests that will join when the step is over, in the middle of which the engine stands."""
        return self._queued.names

    def start(self) -> "EngineLoop":
        """Start the thread; returns the loop."""
        self._mailbox.open()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Finish the current step and end the thread. Unfinished requests are aborted, so that no listener waits."""

        def stop() -> None:
            self._stopping = True

        with contextlib.suppress(RequestError):  # it has stopped already
            self._mailbox.send(stop)
            self._thread.join()

    def submit(self, prompt: str | list[int], params: SamplingParams, listener: Listener | None = None) -> str:
        """Queue a request and return its id. `listener` is called on the engine's thread with every output.

        In the middle of a halted step the request is checked now, and joins when the step is over.

        Raises RequestError if it cannot be served, or too many wait already.
        """

        def submit() -> str:
            self._check_room(1)
            if self._in_step:
                request_id = self._queued.add(prompt, params)
            else:
                request_id = self.engine.add_request(prompt, params).request_id
            if listener is not None:
                self._listeners[request_id] = listener
            return request_id

        return str(self._ask(submit))

    def submit_all(self, requests: list[tuple[str | list[int], SamplingParams]]) -> list[str]:
        """Queue several requests between the same two steps and return their ids.

        Raises RequestError if one of them cannot be served; then none is queued.
        """

        def submit_all() -> list[str]:
            self._check_room(len(requests))
            if self._in_step:
                return self._queued.add_all(requests)
            return [request.request_id for request in self.engine.add_requests(requests)]

        ids: list[str] = self._ask(submit_all)
        return ids

    def stream(self, prompt: str | list[int], params: SamplingParams) -> Iterator[SequenceOutput]:
        """Queue a request and yield its outputs as they come. Leaving the loop early aborts the request.

        Raises RequestError if it cannot be served.
        """
        outputs: queue.SimpleQueue[SequenceOutput] = queue.SimpleQueue()
        request_id = self.submit(prompt, params, outputs.put)
        return self._stream(request_id, outputs)

    def abort(self, request_id: str) -> None:
        """End a request in whatever state it is; in the middle of a halted step, when that is over.

        Raises RequestError if there is no such request.
        """

        def abort() -> None:
            if self._in_step:
                self._queued.abort(request_id)
            else:
                self._deliver(self.engine.abort(request_id))

        self._ask(abort)

    def replace_engine(self, engine: Engine) -> None:
        """Serve with another engine, which begins a new run; also after the old one broke down.

        What the old one has not finished is aborted, its breakpoints are forgotten, and the new one is not halted. An
        old engine that stands in the middle of a step first goes on to the end of it.
        """

        def replace() -> None:
            if self._in_step:
                self._successor = engine
                self._continue(Why.USER_RUN)
            else:
                self._take_over(engine)

        self._mailbox.send(replace).result()

    def _check_room(self, number: int) -> None:
        unfinished = len(self.engine.requests) + len(self.queued)
        if self.max_requests is not None and unfinished + number > self.max_requests:
            raise RequestError(
                f"{unfinished} requests are unfinished and {number} more would join, but at most {self.max_requests} "
                "may be: wait until some have finished, or abort some"
            )

    def trace_kernel(self, sequence: str, layer: int = 0, kv_head: int = 0, tile: int = 0) -> None:
        """See `Engine.trace_kernel`. In the middle of a halted step it may be this very step's launch."""
        self._ask(lambda: self.engine.trace_kernel(sequence, layer, kv_head, tile))

    # halting

    def halt(self) -> None:
        """Stand still after the current step; an engine that stands in the middle of one stays there."""

        def halt() -> None:
            if not self.halted:
                self._halt(Phase.COMMIT, Why.USER_HALT)

        self._ask(halt)

    def step(self) -> None:
        """One whole step of the halted engine, or the rest of the one in which it stands.

        Returns when it stands again, which a breakpoint may bring about earlier. Raises PagelensError if it is not
        halted, or has nothing to do.
        """
        self._move(Why.USER_STEP)

    def next_phase(self) -> None:
        """Go on to the end of the next phase: plan, launch or commit. Otherwise as `step`."""
        self._move(Why.USER_PHASE)

    def run(self, until: Condition | None = None) -> None:
        """Go on after a halt; with `until`, to the end of the phase of the next event that matches."""

        def run() -> None:
            if until is not None:
                self.breakpoints.run_until(until)
            if self.halted:
                self._continue(Why.USER_RUN)

        self._ask(run)

    def wait_until_still(self, timeout: float | None = None) -> bool:
        """Wait until the engine is halted, has nothing to do, or has broken down; False if `timeout` seconds passed."""
        return self._still.wait(timeout)

    def _move(self, goal: Why) -> None:
        arrival: Future[None] = Future()

        def move() -> None:
            if not self.halted:
                what = "phase" if goal is Why.USER_PHASE else "step"
                raise PagelensError(f"the engine is running: halt it before asking for one {what}")
            if not (self._in_step or self.engine.has_work):
                raise PagelensError("there is nothing to do: send a request first")
            self._continue(goal)
            self._goal = goal
            self._arrivals.append(arrival)

        self._ask(move)
        arrival.result()

    def _continue(self, why: Why) -> None:
        self._halted_after = None
        self.breakpoints.pass_over()
        self.log.emit(ev.EngineContinued, why)

    def _halt(self, phase: Phase, why: Why, cause: int = -1) -> None:
        self._halted_after, self._goal = phase, None
        self.log.emit(ev.EngineHalted, why, cause, after=phase)
        if self.breakpoints.armed:
            self.breakpoints.run_until(None)
        self._note_stillness()
        self._tell_arrivals()

    def _tell_arrivals(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            if self.failure is None:
                arrival.set_result(None)
            else:
                arrival.set_exception(self._failed())

    def _note_stillness(self) -> None:
        """Before anyone is answered, so that whoever continues the engine and then waits does not find it still."""
        has_work = self._in_step or self.engine.has_work
        if self.halted or not has_work or self.failure or self._stopping:
            self._still.set()
        else:
            self._still.clear()

    # the engine's thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._answer_commands()
                if self._stopping or self._has_nothing_to_do:
                    continue
                started = time.perf_counter()
                try:
                    self._step()
                except Exception as error:
                    self._break_down(error)
                if self._successor is not None:
                    self._take_over(self._successor)
                self._note_stillness()
                self._answer_commands_until(started)
        finally:
            self._end()

    @property
    def _has_nothing_to_do(self) -> bool:
        return self.halted or not self.engine.has_work or self.failure is not None

    def _step(self) -> None:
        """`Engine.step`, with a stop after each phase for whoever asked for one."""
        engine = self.engine
        self._in_step = True
        plan = engine.plan()
        self._stand_if_asked(Phase.PLAN)
        try:
            launched = engine.launch(plan)
        except Exception as error:
            outputs = engine.fail(plan, error)
        else:
            self._stand_if_asked(Phase.LAUNCH)
            outputs = engine.commit(plan, launched)
        self._in_step = False
        self._deliver(outputs)
        self._queued.carry_out(self._deliver)
        self._stand_if_asked(Phase.COMMIT)

    def _take_over(self, engine: Engine) -> None:
        try:
            self._abort_all()
        except Exception as error:
            self._break_down(error)
        self.engine, self.breakpoints, self._queued = engine, Breakpoints(engine.log), QueuedRequests(engine)
        self._halted_after = self._goal = self.failure = self._successor = None
        self._tell_arrivals()

    def _stand_if_asked(self, phase: Phase) -> None:
        seq = self.breakpoints.look() if self.breakpoints.armed else None
        if self._stopping or self._successor is not None:
            return
        if seq is not None:
            self._halt(phase, Why.USER_BREAKPOINT, seq)
        elif self._goal is Why.USER_PHASE or (self._goal is Why.USER_STEP and phase is Phase.COMMIT):
            self._halt(phase, self._goal)
        while self.halted and self._in_step and not self._stopping:
            self._answer_one(block=True)

    def _answer_commands(self) -> None:
        """Answer what is there; without anything else to do, wait for it."""
        while not self._stopping and self._answer_one(block=self._has_nothing_to_do):
            self._halt_for_idle_events()

    def _answer_commands_until(self, started: float) -> None:
        """Let the time pass that the speed limit asks for, still answering."""
        while (limit := self.steps_per_second) and not (self._stopping or self.halted):
            left = started + 1 / limit - time.perf_counter()
            if left <= 0:
                return
            if self._answer_one(block=True, timeout=min(left, 0.1)):  # the limit may change meanwhile
                self._halt_for_idle_events()

    def _answer_one(self, block: bool, timeout: float | None = None) -> bool:
        letter = self._mailbox.take(block, timeout)
        if letter is None:
            return False
        command, answer = letter
        try:
            result = command()
        except Exception as error:
            answer.set_exception(error)
        else:
            if self._goal is not None and not (self._in_step or self.engine.has_work):
                self._halt(Phase.COMMIT, self._goal)  # what was to be stepped has been aborted
            self._note_stillness()
            answer.set_result(result)
        return True

    def _halt_for_idle_events(self) -> None:
        """A request that arrives or is aborted may be what a breakpoint waits for."""
        if self.breakpoints.armed and not self.halted:
            seq = self.breakpoints.look()
            if seq is not None:
                self._halt(Phase.COMMIT, Why.USER_BREAKPOINT, seq)

    def _deliver(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            request_id = output.sequence.request.request_id
            listener = self._listeners.get(request_id)
            if listener is None:
                continue
            try:
                listener(output)
            except Exception as error:  # one client's mistake must not stop the engine for the others
                del self._listeners[request_id]
                warnings.warn(
                    f"the listener of request {request_id} raised {error!r} and is told no more", stacklevel=1
                )
        for output in outputs:
            if output.sequence.request.is_finished:
                self._listeners.pop(output.sequence.request.request_id, None)

    def _abort_all(self) -> None:
        if self.failure is None:
            for request_id in list(self.engine.requests):
                self._deliver(self.engine.abort(request_id))

    def _break_down(self, error: Exception) -> None:
        """The engine raised outside a launch, so its state cannot be trusted: tell everyone who waits for it."""
        self.failure, self._in_step = error, False
        with contextlib.suppress(Exception):
            self._queued.carry_out(self._deliver)
        outputs = []
        for request in self.engine.requests.values():
            for sequence in request.sequences:
                if sequence.finish_reason is None:
                    sequence.status, sequence.finish_reason = SequenceStatus.FINISHED, FinishReason.ERROR
                    outputs.append(SequenceOutput(sequence, None, "", FinishReason.ERROR))
        self._deliver(outputs)
        self._tell_arrivals()

    def _end(self) -> None:
        """Withdraw what is unfinished, and answer those who ask too late."""
        self._in_step = False
        try:
            self._abort_all()
        finally:
            self._mailbox.close()
            self._tell_arrivals()
            self._still.set()

    # any other thread

    def _stream(self, request_id: str, outputs: "queue.SimpleQueue[SequenceOutput]") -> Iterator[SequenceOutput]:
        num_finished, over = 0, False
        try:
            while not over:
                output = outputs.get()
                request = output.sequence.request
                num_finished += output.finish_reason is not None
                expected = len(request.sequences) if request.search is None else 1  # a beam search ends as one
                over = request.is_finished and num_finished >= expected
                yield output
        finally:
            if not over:
                self._listeners.pop(request_id, None)
                with contextlib.suppress(RequestError):  # it ended meanwhile
                    self.abort(request_id)

    def _ask(self, command: Command) -> Any:
        """Have the engine's thread run `command` where no phase runs, and wait for what it returns or raises."""
        if threading.current_thread() is self._thread:
            raise PagelensError("a listener runs on the engine's own thread, which cannot wait for itself")
        if self.failure is not None:
            raise self._failed()
        return self._mailbox.send(command).result()

    def _failed(self) -> RequestError:
        error = RequestError(f"the engine has stopped: {self.failure}")
        error.__cause__ = self.failure
        return error
