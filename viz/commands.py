"""What a page may ask of the engine: small JSON commands, checked, answered with a result or a message for people."""

from typing import TYPE_CHECKING, Any

import msgspec

from pagelens.engine.debugger import Debugger
from pagelens.engine.errors import PagelensError
from pagelens.engine.sampling_params import SamplingParams

from .mixed_requests import MIXED_REQUESTS

if TYPE_CHECKING:
    from pagelens.engine.engine_loop import EngineLoop

FEWEST_STEPS_PER_SECOND, MOST_STEPS_PER_SECOND = 0.01, 1000.0


class Submit(msgspec.Struct, tag_field="command", tag="submit", forbid_unknown_fields=True):
    """Generate `n` continuations of `prompt`."""

    prompt: str
    max_tokens: int = 64
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.9
    seed: int | None = None
    n: int = 1


class SubmitMixed(msgspec.Struct, tag_field="command", tag="submit_mixed"):
    """Send the eight requests of `mixed_requests.py`."""


class Abort(msgspec.Struct, tag_field="command", tag="abort"):
    """Withdraw one request."""

    request: str


class Halt(msgspec.Struct, tag_field="command", tag="halt"):
    """Stand still after the step that runs now."""


class Step(msgspec.Struct, tag_field="command", tag="step"):
    """One whole step, or the rest of the one in which it stands; the engine must be halted."""


class NextPhase(msgspec.Struct, tag_field="command", tag="next_phase"):
    """To the end of the next phase: plan, launch or commit; the engine must be halted."""


class RunUntil(msgspec.Struct, tag_field="command", tag="run_until", forbid_unknown_fields=True):
    """Go on until the next event that matches `condition`, as in "BlockCopied and block == 17"."""

    condition: str


class RunToToken(msgspec.Struct, tag_field="command", tag="run_to_token"):
    """Go on until `sequence` has its next token, or ends."""

    sequence: str


class Run(msgspec.Struct, tag_field="command", tag="run"):
    """Go on."""


class Speed(msgspec.Struct, tag_field="command", tag="speed"):
    """At most so many steps a second; null: as fast as it goes."""

    steps_per_second: float | None


Command = Submit | SubmitMixed | Abort | Halt | Step | NextPhase | RunUntil | RunToToken | Run | Speed
_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def execute(loop: "EngineLoop", body: bytes) -> dict[str, Any]:
    """Carry out the command in `body` and return what the page is told.

    Raises PagelensError with a message for people if the command cannot be read or cannot be followed.
    """
    try:
        command = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PagelensError(f"this is no command: {error}") from None
    match command:
        case Submit():
            return {"requests": [_submit(loop, command)]}
        case SubmitMixed():
            return {"requests": loop.submit_all(list(MIXED_REQUESTS))}
        case Abort():
            loop.abort(command.request)
        case Halt():
            loop.halt()
        case Step():
            loop.step()
        case NextPhase():
            loop.next_phase()
        case RunUntil():
            Debugger(loop).run_until(command.condition)
        case RunToToken():
            Debugger(loop).run_to_token(command.sequence)
        case Run():
            loop.run()
        case Speed():
            _set_speed(loop, command.steps_per_second)
    return {}


def _submit(loop: "EngineLoop", command: Submit) -> str:
    params = SamplingParams(
        max_tokens=command.max_tokens,
        temperature=command.temperature,
        top_k=command.top_k,
        top_p=command.top_p,
        seed=command.seed,
        n=command.n,
    )
    return loop.submit(command.prompt, params)


def _set_speed(loop: "EngineLoop", steps_per_second: float | None) -> None:
    if steps_per_second is not None and not FEWEST_STEPS_PER_SECOND <= steps_per_second <= MOST_STEPS_PER_SECOND:
        raise PagelensError(
            f"steps_per_second is {steps_per_second}, allowed is {FEWEST_STEPS_PER_SECOND:g} to "
            f"{MOST_STEPS_PER_SECOND:g}, or null for as fast as it goes"
        )
    loop.steps_per_second = steps_per_second
