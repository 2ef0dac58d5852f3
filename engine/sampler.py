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

from .beam_search import Candidate
from .sampling_params import SamplingParams


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


def top_candidates(logits: Tensor, count: int) -> list[Candidate]:
    """The `count` likeliest tokens with their log-probabilities, likeliest first; a banned token is none."""
    top = logits.float().log_softmax(dim=-1).topk(min(count, len(logits)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [Candidate(token, logprob) for token, logprob in pairs if logprob > -np.inf]


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Mask all but the fewest tokens whose probabilities sum to at least `top_p`; the likeliest always stays."""
    ordered, order = logits.sort(descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    return torch.empty_like(logits).scatter(0, order, ordered.masked_fill(before >= top_p, -torch.inf))
