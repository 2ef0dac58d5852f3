"""Decoders that we did not write run through `transformers`, over our cache and kernel, and generate what they should.

A model that does not leave its attention to us, or keeps no keys and values, is refused with a sentence that says why.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PretrainedConfig

from pagelens.engine import LLM, Engine, EngineConfig, ModelError, SamplingParams
from pagelens.engine.events import PrefixLookup, SequenceScheduled, Why
from pagelens.engine.models import attention_survey, fallback

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_inner": 96, "scale_attn_by_inverse_layer_idx": True}),
    "opt": ("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": 32, "init_std": 0.2}),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 24, "sliding_window": 11, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 40},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3": ("Phi3Config", {"sliding_window": 13}),
    "gpt_neox": ("GPTNeoXConfig", {"rotary_pct": 0.5}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0]}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""Each with the switch that sets it apart: scales by layer, offset positions, caps, windows on some layers, ..."""


def config_of(kind: str, **options: Any) -> PretrainedConfig:
    return getattr(transformers, kind)(**SMALL | options)


def write(folder: Path, config: PretrainedConfig) -> Path:
    """A random checkpoint, biases and norms too: `transformers` leaves those at 0 and 1, where none is missed."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name or "ln_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory, make_oracle: Any) -> Callable[[str], Any]:
    """`family(name)`: the `Oracle` of a random checkpoint of a family."""
    oracles: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in oracles:
            kind, options = FAMILIES[name]
            oracles[name] = make_oracle(write(tmp_path_factory.mktemp(name), config_of(kind, **options)))
        return oracles[name]

    return load


def options(kernel: str) -> dict[str, Any]:
    return {"kernel": kernel, "dtype": "float32", "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 12}


def assert_serves_as_transformers(serve: Any, oracle: Any, kernel: str, lengths: list[int], num_blocks: int) -> None:
    """Chunks of 12, prompts that share their beginnings, and a pool that is too small for all of them at once."""
    prompts = [oracle.prompt(length) for length in lengths]
    config = EngineConfig(model=str(oracle.folder), num_gpu_blocks_override=num_blocks, **options(kernel))
    served = serve(config, prompts, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    tokens = near_ties = 0
    for request in served.requests:
        reference = oracle(request.prompt_token_ids)
        answer = request.sequences[0].output_token_ids
        assert len(answer) == 8 and reference.equals(answer), (answer, reference)
        tokens += len(answer)
        near_ties += len(reference.near_ties)
    assert near_ties <= 0.01 * tokens + 1
    assert len({tuple(answer) for [answer] in map(served.outputs, range(len(prompts)))}) > len(prompts) // 2
    assert any(isinstance(e, SequenceScheduled) and e.why == Why.PREFILL_CHUNK for e in served.events)
    assert any(isinstance(e, PrefixLookup) and e.hit_blocks for e in served.events)
    assert served.totals["RequestPreempted"]
    assert isinstance(served.engine.loaded.model, fallback.TransformersDecoder)


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(serve, family, name):
    lengths = [20, 21, 18, 3, 1, 8, 33, 17, 29]
    assert_serves_as_transformers(serve, family(name), "torch", lengths, num_blocks=11)


@pytest.mark.triton
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gemma3"])
def test_the_triton_kernel_equals_transformers(serve, family, name):
    assert_serves_as_transformers(serve, family(name), "triton", [20, 21, 9], num_blocks=8)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gemma3"])
def test_the_numba_kernel_equals_transformers(serve, family, name):
    pytest.importorskip("numba")
    assert_serves_as_transformers(serve, family(name), "numba", [20, 21, 9], num_blocks=8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", [(4, 4, 16, 0.25, None, None), (4, 4, 16, 0.125, None, None)]),
        ("opt", [(4, 4, 16, 1.0, None, None)] * 2),
        ("gemma2", [(4, 2, 24, 40**-0.5, 2.0, 11), (4, 2, 24, 40**-0.5, 2.0, None)]),
        ("gemma3", [(4, 2, 16, 256**-0.5, None, 7), (4, 2, 16, 256**-0.5, None, None)]),
        ("phi3", [(4, 2, 16, 0.25, None, 13)] * 2),
        ("olmo3", [(4, 2, 16, 0.25, None, 9), (4, 2, 16, 0.25, None, None)]),
    ],
)
def test_the_survey_finds_each_layers_shape_scale_cap_and_window(family, name, expected):
    calls = LLM(str(family(name).folder), kernel="torch").engine.loaded.model.calls
    found = [(c.num_heads, c.num_kv_heads, c.head_dim, c.scale, c.softcap, c.sliding_window) for c in calls]
    assert found == [(*e[:3], pytest.approx(e[3]), *e[4:]) for e in expected]


# ---------------------------------------------------------------------------------------------------------- refusals


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as raised:
        Engine(EngineConfig(str(folder), kernel="torch"))
    return str(raised.value)


def write_config(folder: Path, config: PretrainedConfig, architecture: str) -> Path:
    """A checkpoint of which nothing but config.json will be read."""
    config.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [architecture]}))
    return folder


@pytest.mark.parametrize(
    ("kind", "architecture", "reason"),
    [
        ("FalconConfig", "FalconForCausalLM", "does not call the attention interface"),
        ("BloomConfig", "BloomForCausalLM", "does not call the attention interface"),
        ("GPTNeoConfig", "GPTNeoForCausalLM", "does not call the attention interface"),
        ("MptConfig", "MptForCausalLM", "does not call the attention interface"),
        ("BertConfig", "BertForMaskedLM", "it is no decoder"),
        ("T5Config", "T5ForConditionalGeneration", "it is an encoder and a decoder"),
        ("MambaConfig", "MambaForCausalLM", "it is recurrent"),
        ("RwkvConfig", "RwkvForCausalLM", "it is recurrent"),
    ],
)
def test_refused_by_its_class(tmp_path, kind, architecture, reason):
    said = refusal(write_config(tmp_path, getattr(transformers, kind)(), architecture))
    assert said.startswith(f"{architecture} cannot be served: ") and reason in said
    assert "GPT-2, OPT, Gemma 2 and 3" in said


REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "an encoder's head": (config_of("BertConfig", is_decoder=False), "attends to later ones: it is an encoder"),
    "attention sinks": (config_of("GptOssConfig", num_local_experts=4, head_dim=16), "a term of its own, s_aux"),
    "layers that keep a state": (
        config_of("Lfm2Config", layer_types=["conv", "full_attention"]),
        "only 1 of its 2 layers called our attention",
    ),
    "values of another size": (
        config_of(
            "DeepseekV3Config",
            qk_nope_head_dim=8,
            qk_rope_head_dim=8,
            v_head_dim=12,
            kv_lora_rank=16,
            q_lora_rank=16,
            first_k_dense_replace=2,
            num_key_value_heads=4,
        ),
        "16 numbers in Q and K but 12 in V",
    ),
    "two calls for each layer": (config_of("DiffLlamaConfig"), "2 layers called our attention 4 times"),
    "a mask that it learnt": (config_of("DogeConfig", keep_window_size=8), "a mask of its own making"),
    "chunks of positions": (
        config_of("Llama4TextConfig", attention_chunk_size=16, num_local_experts=2, intermediate_size_mlp=96),
        "neither causal nor a sliding window",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_what_it_asks_of_attention(tmp_path, name):
    config, reason = REFUSED[name]
    said = refusal(write(tmp_path, config))
    assert "cannot be served: " in said and reason in said


@pytest.mark.parametrize("kind", ["FalconConfig", "BloomConfig"])
def test_a_class_that_wrongly_says_it_calls_us_is_found_out(tmp_path, monkeypatch, kind):
    """The dry forward must see one call per layer, whatever the class says of itself."""
    config = config_of(kind, n_layer=2, num_attention_heads=4) if kind == "BloomConfig" else config_of(kind)
    monkeypatch.setattr(transformers.PreTrainedModel, "is_backend_compatible", classmethod(lambda cls: True))
    said = refusal(write(tmp_path, config))
    assert "0 of its 2 layers called our attention" in said or "pagelens_survey" in said


LONGROPE = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("kind", "architecture", "rope"),
    [
        ("Olmo2Config", "Olmo2ForCausalLM", {"rope_type": "dynamic", "factor": 2.0}),
        ("Phi3Config", "Phi3ForCausalLM", {"rope_type": "longrope", **LONGROPE}),
    ],
)
def test_positions_that_depend_on_the_batch_are_refused(tmp_path, kind, architecture, rope):
    config = config_of(kind, rope_parameters=rope | {"rope_theta": 10000.0})
    said = refusal(write_config(tmp_path, config, architecture))
    assert f"rope_type '{rope['rope_type']}' turns keys by the longest sequence of a batch" in said


@pytest.mark.parametrize(("field", "value"), [("scale", 0.1), ("softcap", None), ("sliding_window", 1)])
def test_a_wrong_finding_shows_in_the_comparison(family, monkeypatch, field, value):
    """Whatever the survey might miss: the two short sequences must have the logits of the model's own attention."""

    def misread(*arguments: Any) -> list[Any]:
        calls = attention_survey.survey_attention(*arguments)
        return [dataclasses.replace(call, **{field: value}) for call in calls]

    monkeypatch.setattr(fallback, "survey_attention", misread)
    assert "off those of its own attention" in refusal(family("gemma2").folder)


def test_missing_and_surplus_weights_are_refused(family, tmp_path):
    for change, said in (({"lm_head.bias": torch.zeros(3)}, "1 unexpected"), ({}, "1 missing")):
        folder = write(tmp_path / said.replace(" ", "-"), config_of("GPTNeoXConfig"))
        weights = load_file(folder / "model.safetensors") | change
        if not change:
            del weights["gpt_neox.layers.1.attention.dense.weight"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        assert f"{folder} has {said} weights for GPTNeoXForCausalLM" in refusal(folder)
