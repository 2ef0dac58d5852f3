"""Finds a checkpoint and has its model loaded: by `llama_weights.py` if it is like Llama, else by `fallback.py`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from ..attention import Attention, Kernels
from ..chat_prompt import has_chat_template
from ..errors import ModelError
from ..kv_cache import KVCacheSpec
from .llama_weights import ARCHITECTURES, load_llama, read_json
from .loading_progress import Progress, download_bar
from .packed_linear import pack_linears

EMBEDDED_MODEL = Path(__file__).parent.parent / "assets" / "jargon"


@dataclass
class LoadedModel:
    """A model ready to run, with what the engine must know about it."""

    name: str
    model: nn.Module
    config: PretrainedConfig
    tokenizer: Any
    spec: KVCacheSpec
    attention: Attention
    num_parameters: int
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
            "num_parameters": self.num_parameters,
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
    if progress and kernels.compile_for:
        progress("making the kernels ready, half a minute the first time", 0.0)
    kernels = kernels.compiled_for(torch_dtype)
    model: nn.Module
    if config.architectures and config.architectures[0] in ARCHITECTURES:
        model, spec, attention = load_llama(folder, config, torch_dtype, kernels, progress)
    else:
        from .fallback import load_decoder  # here, since it imports triton: see `select_kernels`

        model, spec, attention = load_decoder(folder, config, torch_dtype, kernels, device)
    text_config = config.get_text_config()
    text_config.architectures = config.architectures
    model = model.to(device).eval().requires_grad_(False)
    num_parameters = sum(weight.numel() for weight in model.parameters())
    pack_linears(model, kernels.few_rows)
    return LoadedModel(
        name=name or EMBEDDED_MODEL.name,
        model=model,
        config=text_config,
        tokenizer=_read_tokenizer(folder),
        spec=spec,
        attention=attention,
        num_parameters=num_parameters,
        eos_token_ids=_eos_token_ids(folder, text_config),
    )


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


def _read_config(folder: Path) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: is it a checkpoint in Hugging Face format?")
    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # AutoConfig raises whatever a strange file makes it raise
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if getattr(config, "quantization_config", None):
        raise ModelError(f"{folder} is quantized, which is not supported: use the checkpoint with plain weights")
    return config


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
    eos = read_json(file).get("eos_token_id") if file.is_file() else None
    eos = config.eos_token_id if eos is None else eos
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
