"""What cannot be meant is refused on construction, by name, value and allowed range; what would be ignored, too."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scripted import scripted_engine

from pagelens.engine import LLM, RequestError, SamplingParams

NAN, INF = math.nan, math.inf
WRONG: dict[str, tuple[list[Any], str]] = {
    "max_tokens": ([0, -1, 2**31], r"at least 1, below 2\*\*31"),
    "temperature": ([-0.1, 101, NAN, INF], r"0 \(greedy\) to 100"),
    "top_k": ([-1], r"0 \(all tokens\) or more"),
    "top_p": ([0, 1.1, NAN], r"above 0 and at most 1 \(all tokens\)"),
    "min_p": ([-0.1, 1.1, NAN], r"0 \(all tokens\) to 1"),
    "seed": ([-1, 2**63], r"0 to 2\*\*63 - 1, or None"),
    "n": ([0, 65], "1 to 64"),
    "repetition_penalty": ([0, -1, 10.5, NAN, INF], "above 0, at most 10"),
    "presence_penalty": ([-2.1, 2.1, NAN], "-2 to 2"),
    "frequency_penalty": ([-2.1, 2.1, NAN], "-2 to 2"),
    "min_tokens": ([-1, 17], r"0 to max_tokens \(16\)"),
    "logprobs": ([-1, 21], "0 to 20, or None"),
    "prompt_logprobs": ([-1, 21], "0 to 20, or None"),
    "beam_width": ([-1, 1, 33], r"0 \(off\) or 2 to 32"),
    "length_penalty": ([-11, 11, NAN], "-10 to 10"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (values, _) in WRONG.items() for value in values])
def test_a_number_out_of_range_is_refused(name, value):
    with pytest.raises(RequestError, match=rf"^{name} is {value}, allowed is {WRONG[name][1]}$"):
        SamplingParams(**{"max_tokens": 16, name: value})


def test_the_ends_of_every_range_are_allowed():
    SamplingParams(
        max_tokens=1, temperature=0, top_p=1, min_p=0, seed=0, repetition_penalty=10, presence_penalty=-2, logprobs=0
    )
    SamplingParams(
        temperature=100, min_p=1, seed=2**63 - 1, n=64, frequency_penalty=2, prompt_logprobs=20, min_tokens=128
    )
    SamplingParams(beam_width=32, length_penalty=-10, early_stopping="never")


NUMBERS = [
    field.name for field in dataclasses.fields(SamplingParams) if field.type in (int, float, int | None)
]  # whatever is added later is tested as well


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_refused_before_it_can_fail_a_step(name):
    """Not when the tokens are sampled: that would end the requests of everybody else in the batch."""
    wanted = "a number" if dataclasses.asdict(SamplingParams())[name].__class__ is float else "a whole number"
    with pytest.raises(RequestError, match=f"^{name} is '3', allowed is {wanted}"):
        SamplingParams(**{name: "3"})
    if wanted == "a whole number":
        with pytest.raises(RequestError, match=f"^{name} is 2.5, allowed is a whole number"):
            SamplingParams(**{name: 2.5})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"logit_bias": {7: 100.5}}, "logit_bias of token 7 is 100.5, allowed is -100 to 100"),
        ({"logit_bias": {7: NAN}}, "logit_bias of token 7 is nan"),
        ({"logit_bias": {"7": 1.0}}, "a token of logit_bias is '7', allowed is 0 or more"),
        ({"stop_token_ids": (-1,)}, "a token of stop_token_ids is -1, allowed is 0 or more"),
        ({"forbidden_token_ids": (1.5,)}, "a token of forbidden_token_ids is 1.5, allowed is 0 or more"),
        ({"allowed_token_ids": ()}, r"allowed_token_ids is \(\), allowed is None, or tokens of which one at least"),
        ({"allowed_token_ids": []}, r"allowed_token_ids is \(\)"),
        ({"allowed_token_ids": (1, 2), "forbidden_token_ids": (2, 1)}, r"is neither forbidden nor"),
        ({"allowed_token_ids": (1,), "stop_token_ids": (1,), "min_tokens": 1}, "nor, with min_tokens, a stop token"),
        ({"stop": ("end", "")}, r"stop is \('end', ''\), allowed is texts of at least one character"),
        ({"stop": ""}, "stop is"),
        ({"stop": (5,)}, "stop is"),
        ({"early_stopping": 1}, 'early_stopping is 1, allowed is True, False or "never"'),
        ({"beam_width": 4, "temperature": 0.7}, "temperature is 0.7, allowed is 0 or 1 when beam_width is set"),
        ({"beam_width": 4, "top_k": 5}, "top_k is 5, allowed is 0 when beam_width is set"),
        ({"beam_width": 4, "min_p": 0.1}, "min_p is 0.1, allowed is 0.0 when beam_width is set"),
        ({"beam_width": 4, "seed": 1}, "seed is 1, allowed is None when beam_width is set"),
        ({"beam_width": 4, "logprobs": 1}, "logprobs is 1, allowed is None when beam_width is set"),
        ({"beam_width": 4, "stop": "x"}, r"stop is \('x',\), allowed is \(\) when beam_width is set"),
    ],
)
def test_other_mistakes_say_what_is_wrong(params, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**params)


def test_a_single_stop_text_lists_and_numpy_numbers_are_taken_as_meant():
    params = SamplingParams(stop="end", stop_token_ids=[3], allowed_token_ids=[np.int64(5)], seed=np.int64(7))
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (("end",), (3,), (5,))


@pytest.mark.parametrize("name", ["allowed_token_ids", "forbidden_token_ids", "stop_token_ids", "logit_bias"])
def test_a_token_outside_the_vocabulary_is_refused_at_submission(name):
    engine = scripted_engine()
    token = 1 << 70
    value = {token: 1.0} if name == "logit_bias" else (token,)
    with pytest.raises(RequestError, match=f"token {token} of the sampling parameters is not one of the model's"):
        engine.add_request([1], SamplingParams(**{name: value}))


@pytest.mark.parametrize("asked", ["everything forbidden", "only end tokens, too early", "allowed but forbidden ones"])
def test_a_request_that_leaves_no_token_to_generate_is_refused(asked):
    """Else the largest of nothing but minus infinities would be drawn: a token that was forbidden."""
    llm = LLM(kernel="torch", num_gpu_blocks_override=8)
    ends, size = tuple(llm.engine.loaded.eos_token_ids), llm.engine.loaded.config.vocab_size
    params = {
        "everything forbidden": SamplingParams(forbidden_token_ids=range(size)),
        "only end tokens, too early": SamplingParams(allowed_token_ids=ends, min_tokens=1),
        "allowed but forbidden ones": SamplingParams(
            forbidden_token_ids=[token for token in range(size) if token not in ends], min_tokens=1
        ),
    }[asked]
    with pytest.raises(RequestError, match="no token is left to generate: allow more tokens, or forbid fewer"):
        llm.generate("A hacker is", params)
    assert llm.generate("A", SamplingParams(allowed_token_ids=ends, max_tokens=1))[0].outputs[0].token_ids[0] in ends
