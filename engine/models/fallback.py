"""Any decoder of `transformers`, over our paged cache and kernel: its own code, with attention taken out of its hands.

    transformers' model          [1, T] tokens and positions of all sequences, one after the other
        layer 0:  ... q, k, v  --->  our attention: write k, v to their slots, attend through the block tables
        layer 1:  ... q, k, v  --->  the same, in the cache of layer 1
        head                    -->  logits of the rows asked for

`AttentionInterface` makes that possible: a model computes Q, K and V with its positions in them, and calls a function
by name for the rest. Only attention knows where one sequence ends, so a flat batch needs nothing else. A model that
does not keep to this is refused: by its class, by what `attention_survey` finds, or by `require_same_logits`, which
compares two short sequences, in chunks, with the model's own attention.
"""

import inspect
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..attention import Attention, AttentionMetadata, Kernels, select_kernels
from ..errors import ModelError
from ..kv_cache import KVCache, KVCacheSpec
from .attention_survey import SURVEY, LayerAttention, survey_attention

PAGED = "pagelens"
"""The name of our attention, for `attn_implementation`."""

WORKING = "GPT-2, OPT, Gemma 2 and 3, Phi-3, GPT-NeoX, OLMo 2 and SmolLM3 are among those that can"
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class TransformersDecoder(nn.Module):
    """Runs `model` over a flat batch; `calls` are its attention layers, in order."""

    def __init__(self, model: Any, calls: list[LayerAttention], kernels: Kernels) -> None:
        super().__init__()
        self.model = model
        self.calls = calls
        self.attentions = [
            Attention(kernels, call.num_heads, call.num_kv_heads, call.head_dim, call.scale, call.softcap)
            for call in calls
        ]
        self.layer_of = {call.module: layer for layer, call in enumerate(calls)}
        self.keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(
        self, token_ids: Tensor, positions: Tensor, cache: KVCache, metadata: AttentionMetadata, logit_rows: Tensor
    ) -> Tensor:
        """token_ids and positions int64 [num_tokens] -> logits of the tokens in `logit_rows` [rows, vocab_size]."""

        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            """[1, heads, T, head_dim] three times -> [1, T, heads, head_dim]."""
            layer = self.layer_of[module]
            query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
            window = self.calls[layer].sliding_window
            return self.attentions[layer](query, key, value, cache.layer(layer), metadata, window)[None].to(value.dtype)

        token = _attend.set(attend)
        try:
            options = {"logits_to_keep": logit_rows} if self.keeps_rows else {}
            out = self.model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **options)
        finally:
            _attend.reset(token)
        return out.logits[0] if self.keeps_rows else out.logits[0, logit_rows]


_attend: ContextVar[Any] = ContextVar("_attend")


def _paged_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What a model calls; mask and options are what the survey found, so they are known already."""
    return _attend.get()(module, query, key, value), None


AttentionInterface.register(PAGED, _paged_attention)


def load_decoder(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, kernels: Kernels, device: torch.device
) -> tuple[TransformersDecoder, KVCacheSpec, Attention]:
    """Load a checkpoint with `transformers` and put our attention beneath it; that of the first layer is returned too.

    Raises:
        ModelError: broken files, or a model that cannot run over a paged cache; the message says why.
    """
    architecture = config.architectures[0] if config.architectures else "a checkpoint that names no architecture"
    refusal = _refusal(architecture, config)
    if refusal:
        raise ModelError(f"{architecture} cannot be served: {refusal}; {WORKING}")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no *.safetensors: convert the checkpoint with save_pretrained")
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=SURVEY,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises whatever a strange file makes it raise
        raise ModelError(f"{folder} cannot be loaded by transformers: {error}") from error
    for kind in ("missing", "unexpected"):
        keys = sorted(loading[f"{kind}_keys"])
        if keys:
            raise ModelError(f"{folder} has {len(keys)} {kind} weights for {architecture}, the first is {keys[0]}")
    model = model.to(device).eval().requires_grad_(False)
    try:
        calls = survey_attention(model, config.get_text_config())
        spec = KVCacheSpec(len(calls), calls[0].num_kv_heads, calls[0].head_dim, dtype)
        require_same_logits(TransformersDecoder(model, calls, select_kernels("torch", device)), spec)
    except Exception as error:  # a model that was not made for this fails wherever it likes
        reason = error if isinstance(error, ModelError) else f"a trial run failed ({type(error).__name__}: {error})"
        raise ModelError(f"{architecture} cannot be served: {reason}; {WORKING}") from error
    decoder = TransformersDecoder(model, calls, kernels)
    return decoder, spec, decoder.attentions[0]


def _refusal(architecture: str, config: PretrainedConfig) -> str:
    """Why no model of this class can be served, as far as that is known before its weights are read; "" if none."""
    if config.is_encoder_decoder:
        return "it is an encoder and a decoder, and only decoders keep to one growing list of keys and values"
    if MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type) != architecture:
        return "it is no decoder that predicts a next token (an encoder, or a model for another task)"
    kind = getattr(transformers, architecture)
    if kind._is_stateful:
        return "it is recurrent: it carries a state instead of keys and values, so that there is nothing to page"
    if not kind.is_backend_compatible():
        return "it computes attention by itself and does not call the attention interface of transformers"
    ropes = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for rope in [ropes, *(part for part in ropes.values() if isinstance(part, dict))]:
        if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            return f"rope_type {rope['rope_type']!r} turns keys by the longest sequence of a batch, so none can be kept"
    return ""


@torch.inference_mode()
def require_same_logits(decoder: TransformersDecoder, spec: KVCacheSpec) -> None:
    """Compare two sequences, in two steps of a flat batch each, with the model's own attention and cache.

        step    A        B        blocks of 4: A in 3 and 1, B in 0 and 2
        1       0 - 4    0 - 1
        2       5 - 7    2 - 5

    Raises ModelError if the logits of the second step are not the same.
    """
    model = decoder.model
    device = next(model.parameters()).device
    vocab_size = model.config.get_text_config().vocab_size
    lengths, computed = [8, 6], [0, 0]
    tokens = torch.split(torch.linspace(0, vocab_size - 1, sum(lengths), device=device).long(), lengths)
    model.set_attn_implementation("eager")
    expected = [model(input_ids=part[None], use_cache=True).logits[0] for part in tokens]
    model.set_attn_implementation(PAGED)
    cache = KVCache(spec, 4, 0, 4, device)
    tables = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32, device=device)
    for upto in ([5, 2], lengths):
        new = [torch.arange(start, end, device=device) for start, end in zip(computed, upto, strict=True)]
        metadata = AttentionMetadata(
            query_start_loc=torch.tensor([0, len(new[0]), len(new[0]) + len(new[1])], dtype=torch.int32, device=device),
            seq_lens=torch.tensor(upto, dtype=torch.int32, device=device),
            block_tables=tables,
            slot_mapping=torch.cat([table[part // 4] * 4 + part % 4 for table, part in zip(tables, new, strict=True)]),
            launch=None,
            grid=[],
        )
        positions = torch.cat(new)
        ids = torch.cat([part[its] for part, its in zip(tokens, new, strict=True)])
        logits = decoder(ids, positions, cache, metadata, torch.arange(len(ids), device=device))
        computed = upto
    own = torch.cat([rows[start:] for rows, start in zip(expected, (5, 2), strict=True)])
    error = float((logits - own).abs().max() / own.abs().max())
    limit = 1e-3 if spec.dtype is torch.float32 else 0.1
    if not error <= limit:
        raise ModelError(f"over a paged cache its logits are {error:.1%} off those of its own attention")
