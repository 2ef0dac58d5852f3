"""Finds a checkpoint and fills a `LlamaModel` with its weights; other decoders go to `fallback.py`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from ..attention import Attention, Kernels
from ..chat_prompt import has_chat_template
from ..errors import ModelError
from ..kv_cache import KVCacheSpec
from .llama import LlamaModel
from .loading_progress import Progress, download_bar, follow_weights

EMBEDDED_MODEL = Path(__file__).parent.parent / "assets" / "jargon"
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

FUSED = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 1), "v_proj": ("qkv_proj", 2)}
FUSED |= {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1)}


@dataclass
class LoadedModel:
    """A model ready to run, with what the engine must know about it."""

    name: str
    model: nn.Module
    config: PretrainedConfig
    tokenizer: Any
    spec: KVCacheSpec
    attention: Attention
    eos_token_ids: frozenset[int]

    @property
    def max_model_len(self) -> int:
        """Positions that the model was made for."""
        return int(self.config.max_position_embeddings)

    def describe(self) -> dict[str, Any]:
        """Facts for the header of a log."""
        return {
            "name": self.name,
            "architecture": self.config.architectures[0],
            "num_layers": self.spec.num_layers,
            "num_heads": self.attention.num_heads,
            "num_kv_heads": self.spec.num_kv_heads,
            "head_dim": self.spec.head_dim,
            "vocab_size": self.config.vocab_size,
            "dtype": str(self.spec.dtype).removeprefix("torch."),
            "bytes_per_token": self.spec.bytes_per_token(),
            "chat_template": has_chat_template(self.tokenizer),
        }


def load_model(
    name: str, dtype: str, kernels: Kernels, device: torch.device, progress: Progress | None = None
) -> LoadedModel:
    """Load a checkpoint in Hugging Face format.

    Args:
        name: a folder, a hub id (the only case that may use the network), or "" for the embedded model.
        dtype: as in `EngineConfig.dtype`.
        kernels: what attention will run on; interpreted Triton cannot multiply bfloat16.
        device: where the weights go.
        progress: is told how far it is.

    Raises:
        ModelError: no such checkpoint, broken files, or an architecture that the engine does not run.
    """
    folder = find_checkpoint(name, progress)
    config = _read_config(folder)
    torch_dtype = _choose_dtype(dtype, config, kernels, device)
    kernels = kernels.compiled_for(torch_dtype)
    model: nn.Module
    if config.architectures and config.architectures[0] in ARCHITECTURES:
        model, spec, attention = _load_llama(folder, config, torch_dtype, kernels, progress)
    else:
        from .fallback import load_decoder  # here, since it imports triton: see `select_kernels`

        model, spec, attention = load_decoder(folder, config, torch_dtype, kernels, device)
    text_config = config.get_text_config()
    text_config.architectures = config.architectures
    return LoadedModel(
        name=name or EMBEDDED_MODEL.name,
        model=model.to(device).eval().requires_grad_(False),
        config=text_config,
        tokenizer=_read_tokenizer(folder),
        spec=spec,
        attention=attention,
        eos_token_ids=_eos_token_ids(folder, text_config),
    )


def _load_llama(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, kernels: Kernels, progress: Progress | None
) -> tuple[LlamaModel, KVCacheSpec, Attention]:
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


def find_checkpoint(name: str, progress: Progress | None = None) -> Path:
    """The folder of a checkpoint, downloaded first if `name` is a hub id that is not here yet."""
    if not name:
        return EMBEDDED_MODEL
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelError(
            f"there is no model folder {name!r}: give a folder with config.json and *.safetensors, "
            "a hub id like 'Qwen/Qwen3-0.6B', or nothing for the embedded model"
        )
    try:
        wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
        bar = download_bar(progress) if progress else None
        return Path(snapshot_download(name, allow_patterns=wanted, tqdm_class=bar))
    except Exception as error:  # the hub client raises a dozen unrelated types
        raise ModelError(f"{name!r} is no folder here and could not be fetched from the hub: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _read_config(folder: Path) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: is it a checkpoint in Hugging Face format?")
    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # AutoConfig raises whatever a strange file makes it raise
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if getattr(config, "quantization_config", None):
        raise ModelError(f"{folder} is quantized, which is not supported: use the checkpoint with plain weights")
    if config.architectures and config.architectures[0] in ARCHITECTURES:
        _require_llama(config)
    return config


def _require_llama(config: PretrainedConfig) -> None:
    """Raise ModelError if a checkpoint of one of our architectures has a switch that `llama.py` does not have."""
    if config.hidden_act != "silu":
        raise ModelError(f"hidden_act {config.hidden_act!r} is not supported; supported is 'silu'")
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1:
        raise ModelError("a partial_rotary_factor other than 1 is not supported")
    rope_type = config.rope_parameters["rope_type"]
    if rope_type not in ROPE_TYPES:
        raise ModelError(f"rope_type {rope_type!r} is not supported; supported are {', '.join(ROPE_TYPES)}")


def _choose_dtype(dtype: str, config: PretrainedConfig, kernels: Kernels, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        own: torch.dtype = getattr(config, "dtype", None) or torch.bfloat16
        if device.type != "cpu":
            return own
        fast = own is torch.bfloat16 and not kernels.interpreted and _multiplies_bfloat16()
        return own if fast else torch.float32
    chosen: torch.dtype = getattr(torch, dtype)
    if kernels.interpreted and chosen is torch.bfloat16:
        raise ModelError(
            'dtype="bfloat16" is multiplied wrongly by Triton\'s interpreter: use dtype="float32" or kernel="torch"'
        )
    return chosen


def _multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; without, bfloat16 is slower than float32, not faster."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = [folder / name for name in sorted(set(_read_json(index).get("weight_map", {}).values()))]
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


def _read_tokenizer(folder: Path) -> Any:
    """None if the checkpoint has none: it then serves token ids."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.model_max_length = 1 << 62  # the engine has its own limit, and a better message
        return tokenizer
    except Exception as error:  # AutoTokenizer raises whatever a strange file makes it raise
        raise ModelError(f"the tokenizer in {folder} cannot be read: {error}") from error


def _eos_token_ids(folder: Path, config: PretrainedConfig) -> frozenset[int]:
    file = folder / "generation_config.json"
    eos = _read_json(file).get("eos_token_id") if file.is_file() else None
    eos = config.eos_token_id if eos is None else eos
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
