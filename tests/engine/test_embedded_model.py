"""The model that ships inside the package: its folder, its shape, its tokenizer, and that it has learnt English."""

import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, set_seed

FOLDER = Path(__file__).resolve().parents[2] / "engine" / "assets" / "jargon"
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)

# Sentences written for this test: none of them is in the training text.
SENTENCES = [
    "The machine was slow in the morning, so the programmer went home and slept.",
    "He wrote a program that could read the file, but it did not work on the first day.",
    "Most users of the system do not know that there is a bug in it.",
    "If you are in a hurry, you should not change the code of the operating system.",
    "She asked the old man for the name of the book, and he said that he had lost it.",
    "It is used by people who have been in the business for a very long time.",
]


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, local_files_only=True).eval()


def nats_per_token(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    return functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")


def continuation(model, prompt: str, **options) -> str:
    inputs = TOKENIZER(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=60, **options)
    return TOKENIZER.decode(output[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True)


# ------------------------------------------------------------------------------------------------------- the folder


def test_the_folder_is_complete_and_small():
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 10_000_000


def test_every_stored_weight_is_bfloat16_and_finite():
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        for name in names:
            weight = weights.get_tensor(name)
            assert weight.dtype is torch.bfloat16, name
            assert weight.isfinite().all(), name
    assert "lm_head.weight" not in names  # tied: stored once


def test_shape(model):
    config = model.config
    assert config.model_type == "llama"
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (2, 384, 64)
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 2)
    assert config.max_position_embeddings == 1024
    assert config.vocab_size == len(TOKENIZER) == 4096
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert 4_500_000 < model.num_parameters() < 4_800_000


def test_the_card_states_sources_licence_score_and_limits():
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for expected in ("cc0-1.0", "Jargon File", "Devil's Dictionary", "public domain", "invents facts", "CPU"):
        assert expected in card
    score = re.search(r"Held-out bits per byte \| (\d\.\d{3})", card)
    assert score and 1.0 < float(score.group(1)) < 2.4
    assert f"{4_622_208:,}" in card


# ---------------------------------------------------------------------------------------------------- the tokenizer


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_round_trips_any_text(text):
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


@pytest.mark.parametrize(
    "text", ["", " ", "\r\n\t\x00", " two  spaces ", "don 't , stop .", "naïve 日本語 🦜", "e\u0301"]
)
def test_the_tokenizer_round_trips_awkward_text(text):
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_special_tokens_are_single_and_end_generation():
    for token in ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"):
        assert len(TOKENIZER(token)["input_ids"]) == 1
        assert TOKENIZER.decode(TOKENIZER(token)["input_ids"], skip_special_tokens=True) == ""
    ends = GenerationConfig.from_pretrained(FOLDER).eos_token_id
    assert set(ends) == {TOKENIZER.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|end|>")}


def test_chat_template():
    messages = [
        {"role": "system", "content": "Be brief."},  # the model knows no system messages: the template drops them
        {"role": "user", "content": " What is a bug?\n"},
        {"role": "assistant", "content": "A feature."},
        {"role": "user", "content": "Thanks."},
    ]
    rendered = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|user|>What is a bug?<|end|><|assistant|>A feature.<|end|><|user|>Thanks.<|end|><|assistant|>"
    )
    closed = TOKENIZER.apply_chat_template(messages[:3], tokenize=False)
    assert closed == "<|user|>What is a bug?<|end|><|assistant|>A feature.<|end|>"


# ---------------------------------------------------------------------------------------------------------- English


@pytest.mark.parametrize("sentence", SENTENCES)
def test_it_prefers_a_sentence_to_the_same_words_shuffled(model, sentence):
    first, *rest = sentence.split()
    shuffled = random.Random(0).sample(rest, len(rest))
    in_order = nats_per_token(model, TOKENIZER(sentence)["input_ids"]).sum()
    out_of_order = nats_per_token(model, TOKENIZER(" ".join([first, *shuffled]))["input_ids"]).sum()
    assert in_order < 0.85 * out_of_order


def common_words(text: str) -> float:
    """The share of the words in a text that are common enough in English to be one token here.

    A proxy for a word list: the tokenizer's merges were learnt from English, and a word that the model misspells is
    several tokens.
    """
    words = re.findall(r"[A-Za-z]+", text)
    single = sum(len(TOKENIZER(f" {word}")["input_ids"]) == 1 for word in words)
    return single / max(len(words), 1)


PROMPTS = ["A hacker is", "When a program", "The computer", "In the early days of the Internet,", "There was a"]


def test_its_continuations_read_as_words(model):
    set_seed(0)
    sampled = [continuation(model, prompt, do_sample=True, temperature=0.8) for prompt in PROMPTS for _ in range(4)]
    text = "\n".join(sampled + [continuation(model, prompt, do_sample=False) for prompt in PROMPTS])
    assert sum(character.isalpha() or character in " ,.'\"\n" for character in text) > 0.9 * len(text)
    assert common_words(text) > 0.75
    noise = TOKENIZER.decode(random.Random(0).choices(range(260, 4096), k=1500))
    assert common_words(noise) < 0.7  # so the line above says something


@pytest.mark.parametrize("question", ["What is a hacker?", "Define bug."])
def test_it_answers_a_question_and_stops(model, question):
    inputs = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=400, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert len(output) > 5
    assert output[-1] in GenerationConfig.from_pretrained(FOLDER).eos_token_id


def test_it_works_to_its_last_position(model):
    """The last 200 tokens of 1,024 are no harder to predict with all that went before than with the last 100 of it."""
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    ids = TOKENIZER(" ".join(SENTENCES) + card + " ".join(SENTENCES))["input_ids"][-1024:]
    assert len(ids) == 1024
    far = nats_per_token(model, ids)[-200:].mean()
    near = nats_per_token(model, ids[-300:])[-200:].mean()
    assert far < 1.05 * near
