"""Beam search: which beams go on, which have finished, and when to stop. Pure bookkeeping, no blocks and no tensors.

    beams      candidates, best first                        next beams
    A.0 -1.2   A.0 + "the" -1.9   A.1 + "a" -2.0             A.0 <- A.0 + "the"
    A.1 -1.5   A.0 + EOS   -2.2   A.0 + "an" -2.4   ...      A.1 <- A.1 + "a"
                            |                                (A.0 + "an" would be a fork of A.0)
                            +-> finished, score -2.2 / length ** length_penalty

The scheduler turns the decisions into forks and releases: beams share their common past block by block (PagedAttention
paper, section 4.4). Scores and stopping are those of transformers' beam search, so that results can be compared.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from .sampling_params import SamplingParams


class Candidate(NamedTuple):
    """One token that would continue one beam."""

    token_id: int
    logprob: float


class Continuation(NamedTuple):
    """Decision: beam number `parent` goes on with `token_id`; `score` is its summed log-probability."""

    parent: int
    token_id: int
    score: float


@dataclass(slots=True)
class Hypothesis:
    """A finished beam: its generated tokens, its score, and why it ended ("stop", "length", or what cut it off)."""

    token_ids: list[int]
    score: float
    finish_reason: str


@dataclass(slots=True)
class BeamSearch:
    """State of one request's search.

    `scores[i]` belongs to the i-th running beam, best first; `finished` holds the best beam_width hypotheses, best
    first. `max_length` is the most tokens a beam may generate.
    """

    params: SamplingParams
    end_token_ids: frozenset[int]
    max_length: int
    scores: list[float] = field(default_factory=lambda: [0.0])
    finished: list[Hypothesis] = field(default_factory=list)
    length: int = 0
    done: bool = False
    _can_improve: bool = True

    @property
    def num_candidates(self) -> int:
        """How many best tokens of each beam `advance` needs: enough that not all can be end tokens."""
        return max(2, 1 + len(self.end_token_ids)) * self.params.beam_width

    def advance(self, candidates: list[list[Candidate]], outputs: list[list[int]]) -> list[Continuation]:
        """One step. `candidates[i]` and `outputs[i]` (tokens generated so far) belong to the i-th running beam.

        Returns the beams that go on, best first; the others are dropped. Sets `done` when the search is over.
        """
        width = self.params.beam_width
        pool = [
            Continuation(parent, candidate.token_id, self.scores[parent] + candidate.logprob)
            for parent, tokens in enumerate(candidates)
            for candidate in tokens
        ]
        best = sorted(pool, key=lambda c: -c.score)[: self.num_candidates]
        self.length += 1
        ends = [c.token_id in self.end_token_ids or self.length >= self.max_length for c in best]
        if self._accepts_more():
            for continuation, end in zip(best[:width], ends, strict=False):
                if end:
                    tokens = [*outputs[continuation.parent], continuation.token_id]
                    reason = "stop" if continuation.token_id in self.end_token_ids else "length"
                    self._keep_best(tokens, continuation.score, reason)
        going = [continuation for continuation, end in zip(best, ends, strict=True) if not end][:width]
        self.scores = [continuation.score for continuation in going]
        self._can_improve = self._can_improve and self._improvement_possible()
        self.done = not going or not self._accepts_more()
        return [] if self.done else going

    def give_up(self, beam: int, output: list[int], reason: str) -> None:
        """A running beam ended from outside (out of memory, say): what it has counts as finished."""
        self._keep_best(output, self.scores.pop(beam), reason)

    def _accepts_more(self) -> bool:
        full = len(self.finished) == self.params.beam_width
        return self._can_improve and not (full and self.params.early_stopping is True)

    def _keep_best(self, token_ids: list[int], log_probability: float, reason: str) -> None:
        score = log_probability / max(1, len(token_ids)) ** self.params.length_penalty
        self.finished.append(Hypothesis(token_ids, score, reason))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.params.beam_width :]

    def _improvement_possible(self) -> bool:
        """Whether the best running beam could still beat the worst finished one."""
        if len(self.finished) < self.params.beam_width or not self.scores:
            return True
        longest = self.params.early_stopping == "never" and self.params.length_penalty > 0
        length = self.max_length if longest else self.length
        return self.scores[0] / length**self.params.length_penalty > self.finished[-1].score
