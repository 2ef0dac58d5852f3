"""Chat prompts: the model's own template, and the tokens of the turns before."""

import random
from typing import Any

import pytest
from transformers import AutoTokenizer

from pagelens.engine import LLM, RequestError, SamplingParams
from pagelens.engine.chat_prompt import chat_text, chat_tokens, has_chat_template
from pagelens.engine.models.loader import EMBEDDED_MODEL

QUESTION = {"role": "user", "content": "What is a hacker?"}
WHY = {"role": "user", "content": "Why?"}


@pytest.fixture
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


def said(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def in_pieces(tokenizer: Any, text: str, rng: random.Random) -> list[int]:
    """The text cut where its tokenizer would not cut it, as sampling may."""
    tokens: list[int] = []
    while text:
        length = rng.randint(1, 4)
        tokens += tokenizer.encode(text[:length])
        text = text[length:]
    return tokens


def test_a_first_turn_is_what_the_template_says(tokenizer: Any) -> None:
    expected = tokenizer.apply_chat_template([QUESTION], add_generation_prompt=True)["input_ids"]
    assert chat_tokens(tokenizer, [QUESTION], []) == expected
    assert chat_text(tokenizer, [QUESTION]) == "<|user|>What is a hacker?<|end|><|assistant|>"


@pytest.mark.parametrize("answer", ["A person who programs.", "Ünïcode 🤖 and\nlines", "<|user|> <b>not</b>"])
@pytest.mark.parametrize("ended", [True, False])
def test_the_tokens_of_the_last_turn_are_used_as_they_were_sampled(tokenizer: Any, answer: str, ended: bool) -> None:
    for seed in range(20):
        pieces = in_pieces(tokenizer, answer, random.Random(seed))
        former = chat_tokens(tokenizer, [QUESTION], []) + pieces + tokenizer.encode("<|end|>") * ended
        tokens = chat_tokens(tokenizer, [QUESTION, said(tokenizer.decode(pieces)), WHY], former)
        assert tokens[: len(former)] == former
        assert tokenizer.decode(tokens) == chat_text(tokenizer, [QUESTION, said(answer), WHY])


@pytest.mark.parametrize(
    ("messages", "reused"),
    [
        ([QUESTION, said("A person"), WHY], 13),
        ([QUESTION, said("A pers"), WHY], 10),  # cut short by hand: up to the token that no longer fits
        ([{"role": "user", "content": "What is a wizard?"}, said("A person"), WHY], 4),
        ([said("Hello"), WHY], 0),
    ],
)
def test_of_other_messages_only_what_they_share_is_used(tokenizer: Any, messages: Any, reused: int) -> None:
    answer = [*tokenizer.encode("A"), *tokenizer.encode(" p"), *tokenizer.encode("ers"), *tokenizer.encode("on")]
    former = [*chat_tokens(tokenizer, [QUESTION], []), *answer, *tokenizer.encode("<|end|>")]
    tokens = chat_tokens(tokenizer, messages, former)
    common = next((i for i, (a, b) in enumerate(zip(tokens, former, strict=False)) if a != b), len(former))
    assert tokenizer.decode(tokens) == chat_text(tokenizer, messages)
    assert common >= min(reused, len(former))


def test_the_second_turn_finds_the_blocks_of_the_first() -> None:
    llm = LLM(kernel="torch", num_gpu_blocks_override=64, block_size=8, log_events=True)
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=0)
    first = llm.generate(chat_tokens(llm.engine.tokenizer, [QUESTION], []), params)[0]
    answer = first.outputs[0]
    former = first.prompt_token_ids + answer.token_ids
    second = chat_tokens(llm.engine.tokenizer, [QUESTION, said(answer.text), WHY], former)
    name = llm.generate(second, params)[0].request_id
    view = llm.engine.log.snapshot().sequences[f"{name}.0"]
    assert chat_tokens(llm.engine.tokenizer, [QUESTION, said(answer.text), WHY], [])[: len(former)] != former
    assert view.num_cached_tokens == (len(former) - 1) // 8 * 8 > 8, "all whole blocks; the last token was not computed"


def test_a_model_without_a_template_continues_the_text(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    assert not has_chat_template(tokenizer)
    messages = [{"role": "user", "content": "A hacker"}, said(" is one"), {"role": "user", "content": "who"}]
    assert chat_text(tokenizer, messages) == "A hacker is one\nwho"
    former = tokenizer.encode("A hacker") + tokenizer.encode(" i") + tokenizer.encode("s one")
    assert chat_tokens(tokenizer, messages, former)[: len(former)] == former


def test_what_cannot_be_a_prompt_is_said(tokenizer: Any) -> None:
    with pytest.raises(RequestError, match="no tokenizer, so it cannot chat"):
        chat_tokens(None, [QUESTION], [])
    with pytest.raises(RequestError, match="not valid text"):
        chat_tokens(tokenizer, [{"role": "user", "content": "\ud800"}], [])
    tokenizer.chat_template = "{{ raise_exception('roles must take turns') }}"
    with pytest.raises(RequestError, match="refuses these messages: roles must take turns"):
        chat_text(tokenizer, [QUESTION, QUESTION])
