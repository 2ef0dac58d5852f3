"""What a page may ask of the engine: small JSON commands, checked, answered with a result or a message for people."""

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from pagelens.engine.chat_prompt import chat_tokens
from pagelens.engine.debugger import Debugger
from pagelens.engine.errors import PagelensError
from pagelens.engine.sampling_params import SamplingParams

from .access import Role, Visitor
from .mixed_requests import MIXED_REQUESTS
from .model_loading import ModelLoading
from .own_page import Refused

if TYPE_CHECKING:
    from pagelens.engine.engine_loop import EngineLoop

FEWEST_STEPS_PER_SECOND, MOST_STEPS_PER_SECOND = 0.01, 1000.0
SENDERS_REMEMBERED = 4096


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


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Chat(msgspec.Struct, tag_field="command", tag="chat", forbid_unknown_fields=True):
    """Answer the last of `messages`. `former_token_ids` are the last turn's, prompt and answer, as the events told."""

    messages: list[Message]
    former_token_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]] = []
    max_tokens: int = 128
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.9
    seed: int | None = None


class Abort(msgspec.Struct, tag_field="command", tag="abort"):
    """Withdraw one request."""

    request: str


class Trace(msgspec.Struct, tag_field="command", tag="trace", forbid_unknown_fields=True):
    """Have the next launch with `sequence` tell what its attention kernel reads, `tile` keys at a time (0: as ever)."""

    sequence: str
    layer: int = 0
    kv_head: int = 0
    tile: int = 0


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


class LoadModel(msgspec.Struct, tag_field="command", tag="load_model", forbid_unknown_fields=True):
    """Serve another model from a folder or the hub ("" is the embedded one); null and absent keep their defaults."""

    model: str
    kernel: str = "auto"
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    max_model_len: int | None = None


ForInstructors = Halt | Step | NextPhase | RunUntil | RunToToken | Run | Speed | LoadModel
Command = Submit | SubmitMixed | Chat | Abort | Trace | ForInstructors
_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


class Commands:
    """Carries out what the pages of one loop ask. May be used from any thread."""

    def __init__(self, loop: "EngineLoop") -> None:
        self.loading = ModelLoading(loop)
        self._loop = loop
        self._lock = threading.Lock()
        self._sent: deque[tuple[str, str, str]] = deque(maxlen=SENDERS_REMEMBERED)  # run, request, visitor

    def execute(self, body: bytes, visitor: Visitor) -> dict[str, Any]:
        """Carry out the command in `body` and return what the page is told.

        Raises PagelensError with a message for people if the command cannot be read or cannot be followed, Refused if
        the visitor may not give it.
        """
        try:
            command = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PagelensError(f"this is no command: {error}") from None
        if isinstance(command, ForInstructors):
            if visitor.role is not Role.INSTRUCTOR:
                raise Refused(403, f"{_name(command)} is for the instructor: sign in as the instructor first")
            self._drive(command)
            return {}
        if isinstance(command, Abort):
            self._abort(command.request, visitor)
            return {}
        if isinstance(command, Trace):
            self._loop.trace_kernel(command.sequence, command.layer, command.kv_head, command.tile)
            return {}
        run, requests = self._loop.log.header.run, self._submit(command)
        with self._lock:
            self._sent.extend((run, request, visitor.name) for request in requests)
        return {"requests": requests}

    def _submit(self, command: Submit | SubmitMixed | Chat) -> list[str]:
        loop = self._loop
        match command:
            case Submit():
                return [loop.submit(command.prompt, _sampling_params(command, command.n))]
            case SubmitMixed():
                return loop.submit_all(list(MIXED_REQUESTS))
            case Chat():
                if not command.messages or command.messages[-1].role != "user":
                    raise PagelensError("there is nothing to answer: the last of the messages is to be the user's")
                messages = [{"role": message.role, "content": message.content} for message in command.messages]
                tokens = chat_tokens(loop.engine.tokenizer, messages, command.former_token_ids)
                return [loop.submit(tokens, _sampling_params(command))]

    def _abort(self, request: str, visitor: Visitor) -> None:
        with self._lock:
            is_own = (self._loop.log.header.run, request, visitor.name) in self._sent
        if not is_own and visitor.role is not Role.INSTRUCTOR:
            raise Refused(
                403, f"request {request!r} is not yours: you may abort what you sent, the instructor everything"
            )
        self._loop.abort(request)

    def _drive(self, command: ForInstructors) -> None:
        loop = self._loop
        match command:
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
            case LoadModel():
                self.loading.start(replace(loop.engine.config, **msgspec.structs.asdict(command)))


def _name(command: Command) -> str:
    return str(command.__struct_config__.tag)


def _sampling_params(command: Submit | Chat, n: int = 1) -> SamplingParams:
    return SamplingParams(
        max_tokens=command.max_tokens,
        temperature=command.temperature,
        top_k=command.top_k,
        top_p=command.top_p,
        seed=command.seed,
        n=n,
    )


def _set_speed(loop: "EngineLoop", steps_per_second: float | None) -> None:
    if steps_per_second is not None and not FEWEST_STEPS_PER_SECOND <= steps_per_second <= MOST_STEPS_PER_SECOND:
        raise PagelensError(
            f"steps_per_second is {steps_per_second}, allowed is {FEWEST_STEPS_PER_SECOND:g} to "
            f"{MOST_STEPS_PER_SECOND:g}, or null for as fast as it goes"
        )
    loop.steps_per_second = steps_per_second
