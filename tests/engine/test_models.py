"""A checkpoint either runs as `transformers` runs it, or is refused with a sentence that helps.

The switches of the supported families (rope types, biases, windows on some layers only) are honoured; whatever the
engine would get wrong is a ModelError that names what was found, what is possible and what to do.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagelens.engine import LLM, ConfigError, ModelError, RequestError, SamplingParams
from pagelens.engine.models.llama import sliding_window

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


def load(folder: object, **options: Any) -> LLM:
    return LLM(str(folder), kernel="torch", num_gpu_blocks_override=16, **options)


def message(folder: object, error: type[Exception] = ModelError, **options: Any) -> str:
    """What loading this checkpoint says."""
    with pytest.raises(error) as raised:
        load(folder, **options)
    return str(raised.value)


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


# ------------------------------------------------------------------------------------------------------------ honoured

ROPE = {"rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("mistral", {"rope_parameters": {"rope_type": "linear", **ROPE}}),
        ("mistral", {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 32, **ROPE}}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": False}),
        ("qwen3", {"attention_bias": True}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
        (
            "qwen3",
            {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": True},
        ),
        ("mistral", {"sliding_window": 2}),
        ("mistral", {"rms_norm_eps": 0.1}),
    ],
    ids=str,
)
def test_a_switch_of_the_config_is_honoured(write_checkpoint, make_oracle, name, changes):
    folder = write_checkpoint(name, **changes)
    oracle, llm = make_oracle(folder), load(folder)
    prompts = [oracle.prompt(length, stream) for length in (9, 40) for stream in (0, 1)]
    for prompt, result in zip(prompts, llm.generate(prompts, GREEDY, progress=False), strict=True):
        assert oracle(prompt).equals(result.outputs[0].token_ids)


def test_a_window_hides_what_lies_before_it(checkpoints, oracle):
    """Two layers of 11 look back 20 tokens at most: prompts that differ only before that are continued alike."""
    one, other = oracle("mistral-windowed").prompt(40), oracle("mistral-windowed").prompt(40, stream=1)
    prompts = [one, other[:19] + one[19:]]
    windowed, full = (
        [result.outputs[0].token_ids for result in load(checkpoints[name]).generate(prompts, GREEDY, progress=False)]
        for name in ("mistral-windowed", "mistral")
    )
    assert windowed[0] == windowed[1]
    assert full[0] != full[1]


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({}, [None, None]),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, [None, 5]),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, [5, 5]),
    ],
)
def test_each_layer_has_its_own_window(write_checkpoint, options, windows):
    config = load(write_checkpoint("qwen2", **options)).engine.loaded.config
    assert [sliding_window(config, layer) for layer in range(2)] == windows


def test_a_model_may_be_stored_in_several_files(checkpoint_copy, oracle):
    folder = checkpoint_copy("llama")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, its_names in files.items():
        save_file({name: weights[name] for name in its_names}, folder / file)
    (folder / "unrelated.safetensors").write_bytes(b"not a part of the model")
    index = {"weight_map": {name: file for file, its_names in files.items() for name in its_names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    prompt = oracle("llama").prompt(9)
    assert load(folder).generate(prompt, GREEDY)[0].outputs[0].token_ids == oracle("llama")(prompt).token_ids


def test_max_model_len_is_the_models_own_and_may_be_lowered(checkpoints):
    assert load(checkpoints["llama"]).engine.max_model_len == 256
    assert load(checkpoints["llama"], max_model_len=20).engine.max_model_len == 20


@pytest.mark.parametrize("name", ["llama", "qwen2"])  # for Qwen2, AutoTokenizer would make an empty one up
def test_a_checkpoint_without_tokenizer_serves_token_ids(checkpoints, name):
    llm = load(checkpoints[name])
    assert len(llm.generate([1, 2, 3], GREEDY)[0].outputs[0].token_ids) == 8
    with pytest.raises(RequestError, match="no tokenizer: give the prompt as a list of token ids"):
        llm.generate("some text", GREEDY)


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("name", ["no-such-folder", "/no/such/folder", "./no-such-folder", "~/no/such", "a/b/c"])
def test_unknown_folder(name):
    said = message(name)
    assert f"no model folder {name!r}" in said
    assert "config.json and *.safetensors" in said and "a hub id like" in said and "embedded model" in said


def test_hub_id_without_network():
    said = message("some-org/some-model")
    assert "'some-org/some-model' is no folder here and could not be fetched from the hub" in said
    assert "offline" in said.lower() or "outgoing traffic has been disabled" in said


def test_folder_without_config(tmp_path):
    assert f"{tmp_path} has no config.json" in message(tmp_path)


@pytest.mark.parametrize("text", ["{not json", "[]", "{}", '{"model_type": "no-such-type"}'])
def test_unreadable_config(checkpoint_copy, text):
    folder = checkpoint_copy()
    (folder / "config.json").write_text(text)
    assert f"{folder / 'config.json'} cannot be read: " in message(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("generation_config.json", "{not json"),
        ("model.safetensors.index.json", "{not json"),
        ("tokenizer.json", "{not json"),
        ("tokenizer.json", "{}"),
    ],
)
def test_unreadable_companions_of_the_config(checkpoint_copy, name, text):
    folder = checkpoint_copy()
    (folder / name).write_text(text)
    said = message(folder)
    assert str(folder) in said and "cannot be read: " in said and name.split(".")[0] in said


def test_folder_without_weights(checkpoint_copy):
    folder = checkpoint_copy()
    (folder / "model.safetensors").unlink()
    assert f"{folder} has no *.safetensors: convert the checkpoint" in message(folder)


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_truncated_weights(checkpoint_copy, keep):
    folder = checkpoint_copy()
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    said = message(folder)
    assert f"{file} cannot be read" in said and "fetch it again" in said


def test_garbage_instead_of_weights(checkpoint_copy):
    folder = checkpoint_copy()
    (folder / "model.safetensors").write_bytes(b"<html>Not found</html>" * 100)
    assert f"{folder / 'model.safetensors'} cannot be read" in message(folder)


def test_a_file_of_several_is_not_there(checkpoint_copy):
    folder = checkpoint_copy()
    index = {"weight_map": {"model.norm.weight": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    said = message(folder)
    assert "model-2-of-2.safetensors cannot be read" in said and "missing, fetch it again" in said


@pytest.mark.parametrize(
    ("name", "weight", "own_name"),
    [
        ("llama", "model.layers.1.mlp.down_proj.weight", "layers.1.mlp.down_proj.weight"),
        ("llama", "model.norm.weight", "norm.weight"),
        ("llama", "model.embed_tokens.weight", "embed_tokens.weight"),
        ("mistral", "lm_head.weight", "lm_head.weight"),
        ("llama", "model.layers.1.self_attn.k_proj.weight", "layers.1.self_attn.qkv_proj.weight"),
        ("qwen2", "model.layers.1.self_attn.q_proj.bias", "layers.1.self_attn.qkv_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight", "layers.0.self_attn.q_norm.weight"),
    ],
)
def test_a_weight_is_missing(checkpoint_copy, name, weight, own_name):
    folder = change_weights(checkpoint_copy(name), lambda weights: weights.pop(weight))
    assert f"{folder} lacks 1 of the model's weights, the first is {own_name}" in message(folder)


def test_a_config_with_more_layers_than_weights(checkpoint_copy):
    assert "lacks 6 of the model's weights, the first is layers.2." in message(checkpoint_copy(num_hidden_layers=3))


@pytest.mark.parametrize(
    ("name", "change", "weight"),
    [
        ("llama", {"num_hidden_layers": 1}, "layers.1."),
        ("qwen2", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "layers.0.self_attn.qkv_proj.bias"),
        ("qwen3", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "layers.0.self_attn."),
    ],
)
def test_a_weight_that_would_be_left_out(checkpoint_copy, name, change, weight):
    said = message(checkpoint_copy(name, **change))
    assert f"weights that LlamaForCausalLM does not have, the first is {weight}" in said
    assert "does config.json belong to these weights?" in said


def test_what_can_be_derived_may_be_stored_too(checkpoint_copy, oracle):
    extra = {"lm_head.weight": torch.zeros(199, 64), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    folder = change_weights(checkpoint_copy("llama"), lambda weights: weights.update(extra))
    prompt = oracle("llama").prompt(9)
    assert load(folder).generate(prompt, GREEDY)[0].outputs[0].token_ids == oracle("llama")(prompt).token_ids


def test_quantized_weights(checkpoint_copy):
    said = message(checkpoint_copy(quantization_config={"quant_method": "fp8"}))
    assert "is quantized, which is not supported: use the checkpoint with plain weights" in said


@pytest.mark.parametrize(
    ("change", "shapes"),
    [
        ({"hidden_size": 128}, ["[199, 64]", "[199, 128]"]),
        ({"vocab_size": 100}, ["[199, 64]", "[100, 64]"]),
        ({"intermediate_size": 64}, ["[192, 64]", "[128, 64]"]),
        ({"num_key_value_heads": 4}, ["[128, 64]", "[192, 64]"]),
        ({"head_dim": 32}, ["[128, 64]", "[256, 64]"]),
    ],
    ids=str,
)
def test_weights_of_other_shapes_than_the_config_says(checkpoint_copy, change, shapes):
    said = message(checkpoint_copy(**change))
    assert "do not have the shapes that its config.json says" in said
    assert all(shape in said for shape in shapes)


def test_unsupported_architecture(checkpoint_copy):
    """`test_fallback_models.py` has the architectures that go to `transformers`."""
    said = message(checkpoint_copy(architectures=None))
    assert "a checkpoint that names no architecture cannot be served" in said
    assert "is no decoder that predicts a next token" in said


def test_unsupported_rope_type(checkpoint_copy):
    said = message(checkpoint_copy(rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}))
    assert "rope_type 'dynamic' is not supported; supported are default, linear, llama3, yarn" in said


def test_unsupported_partial_rotation(checkpoint_copy):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    assert "partial_rotary_factor other than 1 is not supported" in message(checkpoint_copy(rope_parameters=rope))


def test_unsupported_activation(checkpoint_copy):
    assert "hidden_act 'gelu' is not supported; supported is 'silu'" in message(checkpoint_copy(hidden_act="gelu"))


def test_max_model_len_beyond_the_model(checkpoints):
    said = message(checkpoints["llama"], ConfigError, max_model_len=300)
    assert "max_model_len is 300" in said and "made for 256 positions" in said and "lower it" in said


@pytest.mark.triton
def test_bfloat16_under_the_interpreter(checkpoints):
    if torch.cuda.is_available():
        pytest.skip("compiled kernels multiply bfloat16 rightly")
    with pytest.raises(ModelError, match='use dtype="float32" or kernel="torch"'):
        LLM(str(checkpoints["llama"]), kernel="triton", dtype="bfloat16")
