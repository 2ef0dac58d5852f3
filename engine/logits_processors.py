"""What a request changes about the model's opinion before a token is drawn: bans, biases and penalties."""

import torch
from torch import Tensor

from .sampling_params import SamplingParams


def adjust(
    logits: Tensor, params: SamplingParams, prompt_ids: list[int], output_ids: list[int], end_token_ids: frozenset[int]
) -> Tensor:
    """Logits [vocab_size] with the request's bans, biases and penalties applied; the input is not changed.

    `end_token_ids` are the model's and the request's end tokens, banned until `min_tokens`.
    """
    banned = list(params.forbidden_token_ids)
    if len(output_ids) < params.min_tokens:
        banned += [token for token in end_token_ids if token < len(logits)]
    penalised = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
    if not (banned or penalised or params.logit_bias or params.allowed_token_ids is not None):
        return logits
    logits = logits.float().clone()
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted({*prompt_ids, *output_ids}), device=logits.device)
        chosen = logits[seen]
        logits[seen] = torch.where(chosen > 0, chosen / params.repetition_penalty, chosen * params.repetition_penalty)
    if output_ids and (params.presence_penalty or params.frequency_penalty):
        counts = torch.bincount(torch.tensor(output_ids, device=logits.device), minlength=len(logits))
        logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if params.allowed_token_ids is not None:
        allowed = torch.tensor(params.allowed_token_ids, device=logits.device)
        logits = torch.full_like(logits, -torch.inf).scatter(0, allowed, logits[allowed])
    if banned:
        logits[torch.tensor(banned, device=logits.device)] = -torch.inf
    return logits
