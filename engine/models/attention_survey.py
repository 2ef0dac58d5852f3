"""What a model of `transformers` asks of its attention, read off one dry forward at load.

The model is run once on a few tokens with an attention that computes nothing and takes notes: which module calls it, in
which order, with how many heads of which size, with which factor, and which keys each query is meant to see. That last
comes as a function of positions, so it is asked about the last position the model was made for, whatever the length of
the dry run:

    position           0   1   2   3   4   5          visible to the query at 5
    causal             x   x   x   x   x   x          all up to itself: no window
    sliding window               x   x   x   x        the last 4, itself included
    anything else      x   x           x   x          refused: the kernel knows only these two
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from ..errors import ModelError

SURVEY = "pagelens_survey"
"""The name of the attention that takes notes, for `attn_implementation`."""

MOST_POSITIONS = 1 << 20
"""Positions at which a mask is looked at, at most."""

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query position, key position) -> whether the query sees the key."""


@dataclass(frozen=True)
class LayerAttention:
    """One layer's attention. `sliding_window` are the tokens that a query sees, itself included; None: all before."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    sliding_window: int | None


class _Survey:
    """The notes of one dry forward. A mask is handed to the model as a tensor full of its number in `masks`."""

    def __init__(self, num_positions: int) -> None:
        self.num_positions = min(num_positions, MOST_POSITIONS)
        self.masks: list[MaskFunction] = []
        self.calls: list[LayerAttention] = []

    def mask(self, mask_function: MaskFunction, q_length: int, kv_length: int, device: Any, **_: Any) -> Tensor:
        self.masks.append(mask_function)
        return torch.full((1, 1, q_length, kv_length), len(self.masks) - 1, device=device)

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        if query.shape[-1] != value.shape[-1]:
            raise ModelError(f"its heads have {query.shape[-1]} numbers in Q and K but {value.shape[-1]} in V")
        for name in ("s_aux", "sinks", "position_bias"):
            if options.get(name) is not None:
                raise ModelError(f"its softmax has a term of its own, {name}, that the kernel does not know")
        if attention_mask is not None:
            number = float(attention_mask.min())
            if number not in range(len(self.masks)) or number != attention_mask.max():
                raise ModelError("it has a mask of its own making")
            window = self._window(self.masks[int(number)])
        elif options.get("is_causal", getattr(module, "is_causal", True)):
            window = options.get("sliding_window")
        else:
            raise ModelError("a token attends to later ones: it is an encoder")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        self.calls.append(LayerAttention(module, query.shape[1], key.shape[1], query.shape[-1], scale, softcap, window))
        return torch.zeros_like(query).transpose(1, 2).contiguous(), None

    def _window(self, mask_function: MaskFunction) -> int | None:
        """How many keys the last position sees, once it is sure that all positions see that many before them."""
        last = self.num_positions - 1
        window = int(self._visible(mask_function, last).sum())
        for query in {0, 1, min(window, last), last // 2, last}:
            keys = torch.arange(self.num_positions)
            visible = self._visible(mask_function, query)
            if visible[query + 1 :].any():
                raise ModelError("a token attends to later ones: it is an encoder")
            if not torch.equal(visible, (keys <= query) & (keys > query - window)):
                raise ModelError("its mask is neither causal nor a sliding window")
        return None if window == self.num_positions else window

    def _visible(self, mask_function: MaskFunction, query: int) -> Tensor:
        zero, keys = torch.tensor(0), torch.arange(self.num_positions)
        return mask_function(zero, zero, torch.tensor(query), keys).expand(self.num_positions)


_survey: ContextVar[_Survey] = ContextVar("_survey")


AttentionInterface.register(SURVEY, lambda *arguments, **options: _survey.get().attention(*arguments, **options))
AttentionMaskInterface.register(SURVEY, lambda **options: _survey.get().mask(**options))


@torch.inference_mode()
def survey_attention(model: nn.Module, config: PretrainedConfig) -> list[LayerAttention]:
    """The attention of each layer, in order; `model` was loaded with `attn_implementation=SURVEY`.

    Raises:
        ModelError: the layers are not what one paged cache and the kernel can serve.
    """
    survey = _Survey(config.max_position_embeddings)
    few = torch.arange(4, device=next(model.parameters()).device)[None]
    token = _survey.set(survey)
    try:
        model(input_ids=few, position_ids=few, use_cache=False)
    finally:
        _survey.reset(token)
    calls, num_layers = survey.calls, config.num_hidden_layers
    if len(calls) < num_layers:
        raise ModelError(
            f"only {len(calls)} of its {num_layers} layers called our attention: the others keep no keys and values"
        )
    if len(calls) > num_layers or len({call.module for call in calls}) < num_layers:
        raise ModelError(
            f"its {num_layers} layers called our attention {len(calls)} times: a layer attends more than once"
        )
    shapes = {(call.num_heads, call.num_kv_heads, call.head_dim) for call in calls}
    if len(shapes) > 1:
        raise ModelError(
            f"its layers have heads of different shapes, (heads, KV heads, head size) being {sorted(shapes)}"
        )
    return calls
