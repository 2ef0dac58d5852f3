"""EngineLoop: the engine on a thread of its own, for whoever must not wait for it.

any thread                          the engine's thread
submit, abort, halt, step, run ---> commands, between two steps ---> engine.step() ---> listeners
                               <--- the answer, or the error
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from . import events as ev
from .engine import Engine
from .errors import PagelensError, RequestError
from .event_log import EventLog
from .events import Phase, Why
from .output_processor import SequenceOutput
from .request import FinishReason, SequenceStatus
from .sampling_params import SamplingParams

Listener = Callable[[SequenceOutput], None]


class EngineLoop:
    """Steps the engine while it has work and is not halted. All methods may be called from any thread.

    `steps_per_second` limits the speed, None is as fast as it goes. `failure` is set if the engine itself broke down;
    everything asked afterwards is answered with it.
    """

    def __init__(self, engine: Engine, steps_per_second: float | None = None) -> None:
        self.engine = engine
        self.steps_per_second = steps_per_second
        self.failure: Exception | None = None
        self._halted = False
        self._stopping = False
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._listeners: dict[str, Listener] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def log(self) -> EventLog:
        """The events of the run."""
        return self.engine.log

    @property
    def halted(self) -> bool:
        """Whether the engine stands still although it may have work."""
        return self._halted

    def start(self) -> "EngineLoop":
        """Start the thread; returns the loop."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Finish the current step and end the thread. Unfinished requests are aborted, so that no listener waits."""
        if not self._thread.is_alive():
            return

        def stop() -> None:
            self._stopping = True
            for request_id in list(self.engine.requests):
                self._deliver(self.engine.abort(request_id))

        if self.failure is None:
            self._ask(stop)
        else:
            self._stopping = True
        self._thread.join()

    def submit(self, prompt: str | list[int], params: SamplingParams, listener: Listener | None = None) -> str:
        """Queue a request and return its id. `listener` is called on the engine's thread with every output.

        Raises RequestError if it cannot be served.
        """

        def submit() -> str:
            request_id = self.engine.add_request(prompt, params).request_id
            if listener is not None:
                self._listeners[request_id] = listener
            return request_id

        return str(self._ask(submit))

    def submit_all(self, requests: list[tuple[str | list[int], SamplingParams]]) -> list[str]:
        """Queue several requests between the same two steps and return their ids.

        Raises RequestError if one of them cannot be served; then none is queued.
        """
        ids: list[str] = self._ask(lambda: [request.request_id for request in self.engine.add_requests(requests)])
        return ids

    def stream(self, prompt: str | list[int], params: SamplingParams) -> Iterator[SequenceOutput]:
        """Queue a request and yield its outputs as they come. Leaving the loop early aborts the request.

        Raises RequestError if it cannot be served.
        """
        outputs: queue.SimpleQueue[SequenceOutput] = queue.SimpleQueue()
        request_id = self.submit(prompt, params, outputs.put)
        return self._stream(request_id, outputs)

    def abort(self, request_id: str) -> None:
        """End a request in whatever state it is. Raises RequestError if there is no such request."""
        self._ask(lambda: self._deliver(self.engine.abort(request_id)))

    def halt(self) -> None:
        """Stand still after the current step."""
        self._ask(self._halt)

    def step(self) -> None:
        """One whole step of the halted engine. Raises PagelensError if it is not halted."""

        def step() -> None:
            if not self._halted:
                raise PagelensError("the engine is running: halt it before asking for one step")
            if not self.engine.has_work:
                raise PagelensError("there is nothing to do: send a request first")
            self.log.emit(ev.EngineContinued, Why.USER_STEP)
            self._deliver(self.engine.step())
            self.log.emit(ev.EngineHalted, Why.USER_STEP, after=Phase.COMMIT)

        self._ask(step)

    def run(self) -> None:
        """Go on after a halt."""

        def run() -> None:
            if self._halted:
                self._halted = False
                self.log.emit(ev.EngineContinued, Why.USER_RUN)

        self._ask(run)

    def _halt(self) -> None:
        if not self._halted:
            self._halted = True
            self.log.emit(ev.EngineHalted, Why.USER_HALT, after=Phase.COMMIT)

    def _stream(self, request_id: str, outputs: "queue.SimpleQueue[SequenceOutput]") -> Iterator[SequenceOutput]:
        num_finished, over = 0, False
        try:
            while not over:
                output = outputs.get()
                request = output.sequence.request
                num_finished += output.finish_reason is not None
                over = request.is_finished and num_finished == len(request.sequences)
                yield output
        finally:
            if not over and self._thread.is_alive():
                self._listeners.pop(request_id, None)
                self.abort(request_id)

    def _ask(self, command: Callable[[], Any]) -> Any:
        """Have the engine's thread run `command` between two steps, and wait for what it returns or raises."""
        if self.failure is not None:
            raise RequestError(f"the engine has stopped: {self.failure}") from self.failure
        if not self._thread.is_alive():
            raise RequestError("the engine is not running: start() the loop first")
        answer: Future[Any] = Future()
        self._commands.put((command, answer))
        return answer.result()

    def _run(self) -> None:
        while not self._stopping:
            self._answer_commands()
            if self._stopping or self._halted or not self.engine.has_work or self.failure:
                continue
            started = time.perf_counter()
            try:
                self._deliver(self.engine.step())
            except Exception as error:
                self._break_down(error)
            self._answer_commands_until(started)

    def _answer_commands(self) -> None:
        """Answer what is there; without anything else to do, wait for it."""
        while True:
            idle = self._halted or not self.engine.has_work or self.failure is not None
            try:
                command, answer = self._commands.get(timeout=0.2) if idle else self._commands.get_nowait()
            except queue.Empty:
                return
            self._answer(command, answer)
            if self._stopping:
                return

    def _answer_commands_until(self, started: float) -> None:
        """Let the time pass that the speed limit asks for, still answering."""
        while (limit := self.steps_per_second) and not (self._stopping or self._halted):
            left = started + 1 / limit - time.perf_counter()
            if left <= 0:
                return
            try:
                self._answer(*self._commands.get(timeout=left))
            except queue.Empty:
                return

    def _answer(self, command: Callable[[], Any], answer: "Future[Any]") -> None:
        try:
            answer.set_result(command())
        except Exception as error:
            answer.set_exception(error)

    def _deliver(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            listener = self._listeners.get(output.sequence.request.request_id)
            if listener is not None:
                listener(output)
        for output in outputs:
            if output.sequence.request.is_finished:
                self._listeners.pop(output.sequence.request.request_id, None)

    def _break_down(self, error: Exception) -> None:
        """The engine raised outside a launch, so its state cannot be trusted: tell everyone who waits for it."""
        self.failure = error
        outputs = []
        for request in self.engine.requests.values():
            for sequence in request.sequences:
                if sequence.finish_reason is None:
                    sequence.status, sequence.finish_reason = SequenceStatus.FINISHED, FinishReason.ERROR
                    outputs.append(SequenceOutput(sequence, None, "", FinishReason.ERROR))
        self._deliver(outputs)
