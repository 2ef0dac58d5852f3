"""Text that is streamed token by token is the text of all tokens, also where a token ends inside a character.

Random streams are the hard case: bytes that belong to no character, characters begun and never ended, special tokens in
between. Whatever arrives, the pieces and what `finish` adds must read as `decode` reads the whole.
"""

import json
import random
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pagelens.engine.detokenizer import Detokenizer
from pagelens.engine.models.loader import EMBEDDED_MODEL

ODD = [
    "日本語のテキスト",
    "naïve café",
    "🦜🏳️‍🌈👩🏽‍🚀",
    "עברית",
    "क्षत्रिय",
    "e\u0301",
    "\u200b",
    "𝔘𝔫𝔦",
    "…—“”",
    "\ufffd",
    "\r\n\t\0",
]
ENGLISH = ["the cat sat on the mat ", "don't stop , he said . ", "  two  spaces", "A hacker is a person"]


def byte_level() -> Any:
    """As GPT-2, Llama 3, Qwen and the embedded model have it: every token is a run of bytes, in a disguise."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<|end|>", "<|user|>"])
    tokenizer.train_from_iterator((ODD + ENGLISH) * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", extra_special_tokens=["<|user|>"])


def byte_fallback() -> Any:
    """As Llama 2 and Mistral have it: "▁" for a space, and <0xE6> for what the vocabulary lacks."""
    specials = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=specials + fallback)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")
    tokenizer.train_from_iterator(ENGLISH * 3, trainer)
    vocab = tokenizer.get_vocab()
    merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokenizer.model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def embedded() -> Any:
    if not EMBEDDED_MODEL.exists():
        pytest.skip(f"{EMBEDDED_MODEL} is not there yet")
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


@pytest.fixture(scope="module", params=[byte_level, byte_fallback, embedded], ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


def streamed(tokenizer: Any, token_ids: list[int]) -> list[str]:
    """The pieces of text, the last one from `finish`."""
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.add(token) for token in token_ids), detokenizer.finish()]


def test_500_random_streams_read_as_decode_reads_them(tokenizer):
    random_ = random.Random(0)
    for _ in range(500):
        token_ids = random_.choices(range(len(tokenizer)), k=random_.randint(1, 60))
        assert "".join(streamed(tokenizer, token_ids)) == tokenizer.decode(token_ids, skip_special_tokens=True)


def test_500_random_streams_of_single_bytes_read_as_decode_reads_them(tokenizer):
    """Most are no UTF-8 at all."""
    random_ = random.Random(0)
    single = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ODD]
    pieces = sorted({token for token_ids in single for token in token_ids})
    for _ in range(500):
        token_ids = random_.choices(pieces, k=random_.randint(1, 30))
        assert "".join(streamed(tokenizer, token_ids)) == tokenizer.decode(token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ODD)
def test_a_stream_may_be_cut_in_the_middle_of_a_character(tokenizer, text):
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    for end in range(len(token_ids) + 1):
        assert "".join(streamed(tokenizer, token_ids[:end])) == tokenizer.decode(
            token_ids[:end], skip_special_tokens=True
        )


@pytest.mark.parametrize("text", ODD[:-2] + ENGLISH)
def test_text_comes_as_soon_as_its_characters_are_whole(tokenizer, text):
    *pieces, rest = streamed(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])
    assert "\ufffd" not in "".join(pieces)
    assert rest == ""


def test_every_token_of_plain_text_brings_its_text(tokenizer):
    token_ids = tokenizer("the cat sat on the mat", add_special_tokens=False)["input_ids"]
    assert all(streamed(tokenizer, token_ids)[:-1])
