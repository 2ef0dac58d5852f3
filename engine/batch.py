"""Batch: the tensors that a model is handed for one step."""

from dataclasses import dataclass

from torch import Tensor

from .attention import AttentionMetadata


@dataclass(slots=True)
class Batch:
    """The tokens of all sequences, one after the other, and the rows whose logits are wanted.

    `token_ids` and `positions` are int64 [num_tokens], `logit_rows` int64 [rows]. `is_decode`: every sequence has one
    token, whose logits are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    logit_rows: Tensor
    is_decode: bool
