"""QueuedRequests: what users ask in the middle of a step, carried out when it is over.

plan | launch | commit |         while the engine stands at one of the inner bars
     ^ submit -> "C"   ^ C joins: checked and named at once, so that nobody waits for the step to end
     ^ abort A         ^ A ends, unless it has ended by itself
"""

from collections.abc import Callable

from . import events as ev
from .engine import Engine
from .errors import RequestError
from .events import Why
from .output_processor import SequenceOutput
from .sampling_params import SamplingParams


class QueuedRequests:
    """Used on the engine's thread; `names` may be read on any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._joining: dict[str, tuple[str | list[int], SamplingParams]] = {}
        self._aborting: dict[str, None] = {}

    @property
    def names(self) -> list[str]:
        """The requests that will join."""
        return list(self._joining)

    def add(self, prompt: str | list[int], params: SamplingParams) -> str:
        """Check a request and return the id that it will have. Raises RequestError if it cannot be served."""
        engine = self._engine
        request_id = engine.next_request_name(ahead=len(self._joining))
        try:
            self._check(prompt, params)
        except RequestError as error:
            engine.log.emit(ev.RequestRejected, Why.INVALID, request=request_id, message=str(error))
            raise
        self._joining[request_id] = (prompt, params)
        return request_id

    def add_all(self, requests: list[tuple[str | list[int], SamplingParams]]) -> list[str]:
        """Several requests, or none: raises RequestError if one of them cannot be served."""
        for prompt, params in requests:
            self._check(prompt, params)
        return [self.add(prompt, params) for prompt, params in requests]

    def abort(self, request_id: str) -> None:
        """Note that a request, queued or not, is to end. Raises RequestError if there is none of this name."""
        if request_id not in self._engine.requests and request_id not in self._joining:
            raise RequestError(f"there is no unfinished request {request_id!r}")
        self._aborting[request_id] = None

    def carry_out(self, deliver: Callable[[list[SequenceOutput]], None]) -> None:
        """The step is over: let the queued requests join, in order, and end what is to end."""
        if not (self._joining or self._aborting):
            return
        joining, self._joining = self._joining, {}
        aborting, self._aborting = self._aborting, {}
        for request_id, (prompt, params) in joining.items():
            self._engine.add_request(prompt, params, request_id)
        for request_id in aborting:
            if request_id in self._engine.requests:
                deliver(self._engine.abort(request_id))

    def _check(self, prompt: str | list[int], params: SamplingParams) -> None:
        self._engine.checks.check(self._engine.tokenize(prompt), params)
