"""Sampler: logits to tokens, reproducibly.

Gumbel-max: add independent Gumbel noise to the scaled logits and take the largest; that is an exact draw from their
softmax. The noise comes from a counter-based generator (Philox) keyed by (seed, sample index, position), so there is no
generator state to carry through a preemption or a fork, and a sequence draws the same tokens alone or in any batch.

    logits -> logits_processors.adjust -> / temperature -> min-p, top-k, top-p -> + noise -> largest
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagelens.kernels.layer_ops import LayerOps

from .beam_search import Candidate
from .logits_processors import adjust
from .request import Sequence
from .sampling_params import SamplingParams
from .step_plan import ScheduledSequence, StepPlan


class Sample(NamedTuple):
    """A drawn token. `logprobs`, if asked for: the token's own log-probability and the likeliest ones', by token."""

    token_id: int
    logprobs: dict[int, float] | None = None


@dataclass(slots=True)
class SequenceResult:
    """What the model said about one scheduled sequence.

    `samples` are the next tokens, one per branch; a beam has `candidates` instead. `prompt_logprobs[p]` belongs to the
    prompt token at position p, where asked for.
    """

    samples: list[Sample] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    prompt_logprobs: dict[int, dict[int, float]] = field(default_factory=dict)


def num_logits(item: ScheduledSequence) -> int:
    """How many of a scheduled sequence's last computed tokens have their logits wanted: all, the last, or none."""
    if item.sequence.request.params.prompt_logprobs is not None and item.start < item.sequence.num_prompt_tokens:
        return item.num_tokens
    return 1 if item.num_samples else 0


class Sampler:
    """Turns the logits of a step into results. `seed` is the engine's, for requests without one of their own."""

    def __init__(self, seed: int, ops: LayerOps) -> None:
        self._seed = seed
        self._ops = ops

    def results(self, plan: StepPlan, logits: Tensor) -> list[SequenceResult]:
        """One result per scheduled sequence. `logits` [rows, vocab_size] has `num_logits` rows of each, in order."""
        likeliest = self._ops.largest_of_each(logits)  # one call, where one a sequence would cost more
        results, row = [], 0
        for item in plan.scheduled:
            count = num_logits(item)
            results.append(self._result(item, logits[row : row + count], likeliest[row : row + count]))
            row += count
        return results

    def _result(self, item: ScheduledSequence, logits: Tensor, likeliest: list[int]) -> SequenceResult:
        sequence, params = item.sequence, item.sequence.request.params
        result = SequenceResult()
        if params.prompt_logprobs is not None:
            for position, row in zip(range(item.start + 1, sequence.num_prompt_tokens), logits, strict=False):
                token = sequence.token_ids[position]
                result.prompt_logprobs[position] = top_logprobs(row, params.prompt_logprobs, token)
        if item.num_samples:
            last, search = logits[-1], sequence.request.search
            if search is not None:
                scores = self._adjusted(last.float().log_softmax(dim=-1), sequence)  # in this order: transformers'
                result.candidates = top_candidates(scores, search.num_candidates)
            else:
                result.samples = self._samples(last, likeliest[-1], sequence, item.num_samples)
        return result

    def _samples(self, logits: Tensor, likeliest: int, sequence: Sequence, count: int) -> list[Sample]:
        request, params = sequence.request, sequence.request.params
        # 128 bits: a request's own seed in the low half, or the engine's with the request's number in the high one.
        seed = self._seed | (request.arrival + 1) << 64 if params.seed is None else params.seed
        adjusted = self._adjusted(logits, sequence)
        samples = []
        for index in range(sequence.sample_index, sequence.sample_index + count):
            as_it_is = params.temperature == 0 and adjusted is logits
            token = likeliest if as_it_is else sample(adjusted, params, seed, index, sequence.num_tokens)
            asked = params.logprobs is not None
            samples.append(Sample(token, top_logprobs(logits, params.logprobs or 0, token) if asked else None))
        return samples

    def _adjusted(self, logits: Tensor, sequence: Sequence) -> Tensor:
        params, prompt = sequence.request.params, sequence.request.prompt_token_ids
        return adjust(logits, params, prompt, sequence.output_token_ids, sequence.request.end_token_ids)


def sample(logits: Tensor, params: SamplingParams, seed: int, sample_index: int, position: int) -> int:
    """Draw the token at `position` of one sequence.

    Args:
        logits: [vocab_size], any float dtype, on any device.
        params: temperature 0 takes the largest logit (the first of equals).
        seed: of the request, up to 128 bits.
        sample_index: which of the request's n samples.
        position: of the token to be drawn, counted from the start of the prompt.
    """
    if params.temperature == 0:
        return int(logits.argmax())
    scaled = (logits.float() - logits.max()) / params.temperature  # at most 0: cannot overflow
    if params.min_p:
        scaled = scaled.masked_fill(scaled < np.log(params.min_p), -torch.inf)
    if params.top_k:
        top = scaled.topk(min(params.top_k, len(scaled)))
        scaled = torch.full_like(scaled, -torch.inf).scatter(0, top.indices, top.values)
    if params.top_p < 1:
        scaled = _keep_top_p(scaled, params.top_p)
    noise = gumbel_noise(len(scaled), seed, sample_index, position)
    return int((scaled + torch.from_numpy(noise).to(scaled.device)).argmax())


def gumbel_noise(size: int, seed: int, sample_index: int, position: int) -> np.ndarray:
    """Standard Gumbel noise, float32 [size], a pure function of its arguments."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, position, sample_index]))
    uniform = generator.random(size, dtype=np.float32)
    tiny = np.finfo(np.float32).tiny
    return -np.log(-np.log(np.maximum(uniform, tiny)))


def top_logprobs(logits: Tensor, count: int, token_id: int) -> dict[int, float]:
    """Log-probabilities of the `count` likeliest tokens and of `token_id`, before any processing; likeliest first."""
    logprobs = logits.float().log_softmax(dim=-1)
    top = logprobs.topk(min(count, len(logprobs)))
    found = dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return found if token_id in found else found | {token_id: float(logprobs[token_id])}


def top_candidates(logprobs: Tensor, count: int) -> list[Candidate]:
    """The `count` likeliest tokens with their log-probabilities, likeliest first; banned ones, at -inf, are none."""
    top = logprobs.topk(min(count, len(logprobs)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [Candidate(token, logprob) for token, logprob in pairs if logprob > -np.inf]


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Mask all but the fewest tokens whose probabilities sum to at least `top_p`; the likeliest always stays."""
    ordered, order = logits.sort(descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    return torch.empty_like(logits).scatter(0, order, ordered.masked_fill(before >= top_p, -torch.inf))
