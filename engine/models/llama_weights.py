"""Fills a `LlamaModel` with the weights of a checkpoint, whose products that share an input become one.

q_proj [576, 576]  k_proj [192, 576]  v_proj [192, 576]    ->    qkv_proj [960, 576]
gate_proj, up_proj                                         ->    gate_up_proj
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PretrainedConfig

from ..attention import Attention, Kernels
from ..errors import ModelError
from ..kv_cache import KVCacheSpec
from .llama import LlamaModel
from .loading_progress import Progress, follow_weights

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

FUSED = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 1), "v_proj": ("qkv_proj", 2)}
FUSED |= {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1)}


def load_llama(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, kernels: Kernels, progress: Progress | None
) -> tuple[LlamaModel, KVCacheSpec, Attention]:
    """A `LlamaModel` with the weights in `folder`, and what its cache and attention look like.

    Raises:
        ModelError: broken files, weights that are not those of the config, or a switch that `llama.py` does not have.
    """
    _require_supported(config)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = Attention(kernels, heads, kv_heads, head_dim, head_dim**-0.5)
    with torch.device("meta"):
        model = LlamaModel(config, attention)
    weights = _read_weights(folder)
    if progress is not None:
        weights = follow_weights(weights, folder, progress)
    try:
        loading = model.load_state_dict(_fuse(weights, config, dtype), strict=False, assign=True)
    except RuntimeError as error:
        raise ModelError(
            f"the weights in {folder} do not have the shapes that its config.json says: {error}"
        ) from error
    if loading.unexpected_keys:
        raise ModelError(
            f"{folder} has {len(loading.unexpected_keys)} weights that {config.architectures[0]} does not have, "
            f"the first is {loading.unexpected_keys[0]}: does config.json belong to these weights?"
        )
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    _require_complete(model, folder)
    model.rotary = type(model.rotary)(config, head_dim)
    return model, KVCacheSpec(config.num_hidden_layers, kv_heads, head_dim, dtype), attention


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError if it cannot be read."""
    try:
        content = json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _require_supported(config: PretrainedConfig) -> None:
    """Raise ModelError if a checkpoint of one of our architectures has a switch that `llama.py` does not have."""
    if config.hidden_act != "silu":
        raise ModelError(f"hidden_act {config.hidden_act!r} is not supported; supported is 'silu'")
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1:
        raise ModelError("a partial_rotary_factor other than 1 is not supported")
    rope_type = config.rope_parameters["rope_type"]
    if rope_type not in ROPE_TYPES:
        raise ModelError(f"rope_type {rope_type!r} is not supported; supported are {', '.join(ROPE_TYPES)}")


def _read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = [folder / name for name in sorted(set(read_json(index).get("weight_map", {}).values()))]
    if not files:
        raise ModelError(f"{folder} has no *.safetensors: convert the checkpoint with save_pretrained")
    for file in files:
        try:
            with safe_open(file, framework="pt") as weights:
                for key in weights.keys():  # noqa: SIM118 (not a dict)
                    yield key, weights.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file} cannot be read ({error}): the file is broken or missing, fetch it again"
            ) from error


def _fuse(weights: Iterator[tuple[str, Tensor]], config: PretrainedConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Checkpoint names to ours, with the products that share an input stacked into one."""
    state: dict[str, Tensor] = {}
    parts: dict[str, dict[int, Tensor]] = {}
    for key, tensor in weights:
        if key.endswith("rotary_emb.inv_freq") or (key == "lm_head.weight" and config.tie_word_embeddings):
            continue  # derived from the config; a copy of the embedding
        path = key.removeprefix("model.").split(".")
        tensor = tensor.to(dtype)
        if len(path) >= 2 and path[-2] in FUSED:
            fused, position = FUSED[path[-2]]
            parts.setdefault(".".join([*path[:-2], fused, path[-1]]), {})[position] = tensor
        else:
            state[".".join(path)] = tensor
    for key, by_position in parts.items():
        if len(by_position) < (3 if "qkv_proj" in key else 2):
            continue  # reported as missing
        state[key] = torch.cat([by_position[position] for position in sorted(by_position)])
    return state


def _require_complete(model: LlamaModel, folder: Path) -> None:
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} of the model's weights, the first is {missing[0]}")
