"""Sampler: logits to tokens, reproducibly.

Gumbel-max: add independent Gumbel noise to the scaled logits and take the largest; that is an exact draw from their
softmax. The noise comes from a counter-based generator (Philox) keyed by (seed, sample index, position), so there is no
generator state to carry through a preemption or a fork, and a sequence draws the same tokens alone or in any batch.
"""

import numpy as np
import torch
from torch import Tensor

from .sampling_params import SamplingParams


def sample(logits: Tensor, params: SamplingParams, seed: int, sample_index: int, position: int) -> int:
    """Draw the token at `position` of one sequence.

    Args:
        logits: [vocab_size], any float dtype, on any device.
        params: temperature 0 takes the largest logit (the first of equals).
        seed: of the request.
        sample_index: which of the request's n samples.
        position: of the token to be drawn, counted from the start of the prompt.
    """
    if params.temperature == 0:
        return int(logits.argmax())
    scaled = (logits.float() - logits.max()) / params.temperature  # at most 0: cannot overflow
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


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Mask all but the fewest tokens whose probabilities sum to at least `top_p`; the likeliest always stays."""
    ordered, order = logits.sort(descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    return torch.empty_like(logits).scatter(0, order, ordered.masked_fill(before >= top_p, -torch.inf))
