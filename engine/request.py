"""Request, what a user asked for, and Sequence, one branch of its answer.

    Request "A", n = 3                     token_ids
    +-- Sequence "A.0"   prompt ........ | The cat sat
    +-- Sequence "A.1"   prompt ........ | The dog        forks of A.0: they share its blocks
    +-- Sequence "A.2"   prompt ........ | A              until each writes its own
                         num_prompt_tokens

A sequence is in no phase. It has `num_tokens`, of which `num_computed_tokens` have their keys and values in the cache;
the scheduler closes the gap, a chunk of a prompt or a single new token at a time.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from .beam_search import BeamSearch, Candidate
from .sampling_params import SamplingParams


class SequenceStatus(StrEnum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a sequence ended. `stop`, `length` and `abort` are OpenAI's and vLLM's words.

    `beam`: its request's beam search went on, or ended, without it; the answers are the request's hypotheses.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    OUT_OF_BLOCKS = "out_of_blocks"
    ERROR = "error"
    BEAM = "beam"


@dataclass(eq=False, slots=True)
class Sequence:
    """One branch of a request.

    `name` is "A.0": the request and the sample index. `last_event` is the `seq` of the newest event about it, the cause
    of what comes next. `candidates` are a beam's, until all beams of its request have theirs.
    """

    name: str
    request: "Request"
    sample_index: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    last_event: int = -1
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens together."""
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose keys and values are not in the cache."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def reads_no_cache(self) -> bool:
        """Whether the logits of all prompt positions are wanted, so that none may come from the prefix cache."""
        wanted = self.request.params.prompt_logprobs is not None
        return wanted and len(self.request.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_branches(self) -> int:
        """Sequences that this one may stand for: those its request has yet to fork from it, and itself."""
        request = self.request
        if request.search is not None:
            return request.params.beam_width - len(request.beams) + 1 if self is request.beams[0] else 1
        return 1 if len(request.sequences) > 1 else request.params.n


@dataclass(eq=False, slots=True)
class Request:
    """What the user asked: a prompt, parameters, and the sequences that answer it.

    `arrival` counts requests from 0 in the order of their submission. A smaller `priority` is more urgent; `urgency` is
    the priority aged (`Scheduler.add`). Requests share cached prefixes only under the same `cache_salt`.
    `num_preemptions` counts how often this one had to give its blocks back. `end_token_ids` end its sequences. With
    beam search, `search` decides and `beams` are the running ones, in its order. `prompt_logprobs` is by position.
    """

    request_id: str
    arrival: int
    prompt: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    sequences: list[Sequence] = field(default_factory=list)
    num_preemptions: int = 0
    urgency: float = 0.0
    end_token_ids: frozenset[int] = frozenset()
    prompt_logprobs: dict[int, dict[int, float]] = field(default_factory=dict)
    search: BeamSearch | None = None
    beams: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = Sequence(f"{self.request_id}.0", self, 0, list(self.prompt_token_ids), len(self.prompt_token_ids))
        self.sequences.append(first)
        self.beams.append(first)

    @property
    def is_finished(self) -> bool:
        """Whether every sequence has ended."""
        return all(sequence.status is SequenceStatus.FINISHED for sequence in self.sequences)


def request_name(arrival: int) -> str:
    """A, B, ... Z, AA, AB, ...: short names that can be told apart on a map and spoken aloud in class."""
    name = ""
    arrival += 1
    while arrival:
        arrival, letter = divmod(arrival - 1, 26)
        name = chr(ord("A") + letter) + name
    return name
