"""Bans, biases and penalties: what their definitions say, what `transformers` does, and the same through all of memory.

A wrong penalty still gives fluent text, so each is compared with an implementation of its own, written token by token
from its definition, and with `transformers` where it has the same one.
"""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)

from pagelens.engine import LLM, EngineConfig, SamplingParams
from pagelens.engine import sampler as sampler_module
from pagelens.engine.logits_processors import adjust
from pagelens.engine.sampler import sample

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE = 24
PROMPT, OUTPUT = [1, 2, 3, 2], [3, 5, 5, 5, 8]
ENDS = frozenset({0, 8})


def random_logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=3, size=SIZE).astype(np.float32)


def by_definition(logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    """One token after the other, as the docstring of SamplingParams reads."""
    changed = []
    for token, logit in enumerate(logits.astype(np.float64)):
        if token in prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.presence_penalty * (token in output)
        logit -= params.frequency_penalty * output.count(token)
        logit += params.logit_bias.get(token, 0)
        not_allowed = params.allowed_token_ids is not None and token not in params.allowed_token_ids
        too_early = token in ENDS and len(output) < params.min_tokens
        changed.append(-np.inf if not_allowed or too_early or token in params.forbidden_token_ids else logit)
    return np.array(changed)


ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "repetition": {"repetition_penalty": 1.7},
    "repetition below 1": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.4},
    "negative": {"presence_penalty": -0.5, "frequency_penalty": -2.0},
    "bias": {"logit_bias": {0: 5.0, 5: -100.0, 23: 2.5}},
    "allowed": {"allowed_token_ids": (3, 8, 9)},
    "forbidden": {"forbidden_token_ids": (0, 5, 23)},
    "min_tokens": {"min_tokens": 6},
    "min_tokens reached": {"min_tokens": 5},
}
ASKED["everything"] = {name: value for asked in ASKED.values() for name, value in asked.items()} | {"min_tokens": 6}


@pytest.mark.parametrize("output", [[], OUTPUT], ids=["first token", "later"])
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_logits_change_as_defined(asked, output):
    params = SamplingParams(**asked)
    for seed in range(10):
        logits = random_logits(seed)
        adjusted = adjust(torch.from_numpy(logits), params, PROMPT, output, ENDS)
        np.testing.assert_allclose(adjusted, by_definition(logits, params, PROMPT, output), rtol=1e-6, atol=1e-5)
        np.testing.assert_array_equal(
            logits, random_logits(seed), "the logits that logprobs are made of stay as they are"
        )


def test_penalties_of_the_output_leave_the_prompt_alone():
    params = SamplingParams(presence_penalty=2, frequency_penalty=2)
    zeros = torch.zeros(SIZE)
    assert adjust(zeros, params, PROMPT, [], ENDS).eq(0).all()
    assert adjust(zeros, params, PROMPT, [5, 5], ENDS).nonzero().flatten().tolist() == [5]


# ----------------------------------------------------------------------------------------------------- transformers


THEIRS: dict[str, Any] = {
    "repetition": RepetitionPenaltyLogitsProcessor(1.7),
    "min_tokens": MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, sorted(ENDS), device="cpu"),
    "bias": SequenceBiasLogitsProcessor([[[token], bias] for token, bias in ASKED["bias"]["logit_bias"].items()]),
    "forbidden": SuppressTokensLogitsProcessor(list(ASKED["forbidden"]["forbidden_token_ids"])),
}


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("num_output", [0, 3, 5])
def test_transformers_changes_the_logits_alike(name, num_output):
    output = OUTPUT[:num_output]
    for seed in range(10):
        logits = torch.from_numpy(random_logits(seed))
        ours = adjust(logits, SamplingParams(**ASKED[name]), PROMPT, output, ENDS)
        expected = THEIRS[name](torch.tensor([PROMPT + output]), logits[None].clone())[0]
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("min_p", [0.01, 0.1, 0.5, 1.0])
def test_transformers_keeps_the_same_tokens_with_min_p(monkeypatch, min_p, temperature):
    """min-p counts probabilities at the request's temperature. A token remains if noise can make it the drawn one."""
    params = SamplingParams(min_p=min_p, temperature=temperature)
    for seed in range(10):
        logits = torch.from_numpy(random_logits(seed))
        possible = []
        for token in range(SIZE):
            noise = np.where(np.arange(SIZE) == token, 1e6, 0).astype(np.float32)
            monkeypatch.setattr(sampler_module, "gumbel_noise", lambda *_, noise=noise: noise)
            possible += [token] if sample(logits, params, 0, 0, 0) == token else []
        warped = MinPLogitsWarper(min_p)(None, TemperatureLogitsWarper(temperature)(None, logits[None].clone()))[0]
        assert possible == warped.isfinite().nonzero().flatten().tolist()


GENERATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repetition": ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    "min_tokens": ({"min_tokens": 6}, {"min_new_tokens": 6}),
    "forbidden": ({"forbidden_token_ids": tuple(range(90))}, {"suppress_tokens": list(range(90))}),
    "bias": (
        {"logit_bias": {7: 9.0, 11: 9.0, 13: -9.0}},
        {"sequence_bias": [[[7], 9.0], [[11], 9.0], [[13], -9.0]]},
    ),
    "all": (
        {"repetition_penalty": 1.3, "min_tokens": 5, "forbidden_token_ids": tuple(range(50))},
        {"repetition_penalty": 1.3, "min_new_tokens": 5, "suppress_tokens": list(range(50))},
    ),
}
END_TOKENS = tuple(range(100, 130))  # so many that answers end at different lengths


@pytest.mark.parametrize("beam_width", [0, 3], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", GENERATED)
def test_whole_answers_are_those_of_transformers(oracle, name, beam_width):
    """Greedily and, with the scores, in a beam search, which applies all of them to log-probabilities."""
    ours, their = GENERATED[name]
    llama = oracle("llama")
    prompts = [llama.prompt(length, stream) for length in (3, 9, 20) for stream in (0, 1)]
    llm = LLM(str(llama.folder), kernel="torch", block_size=8, num_gpu_blocks_override=60)
    params = SamplingParams(max_tokens=12, temperature=0, stop_token_ids=END_TOKENS, beam_width=beam_width, **ours)
    for prompt, result in zip(prompts, llm.generate(prompts, params, progress=False), strict=True):
        reference = llama.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),  # else transformers takes every 0 of the prompt for padding
            max_new_tokens=12,
            do_sample=False,
            num_beams=beam_width or 1,
            eos_token_id=list(END_TOKENS),
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
            **their,
        )
        best = result.outputs[0]
        assert best.token_ids == reference.sequences[0, len(prompt) :].tolist()[: len(best.token_ids)]
        assert best.finish_reason == ("stop" if best.token_ids[-1] in END_TOKENS else "length")
        if beam_width:
            assert best.score == pytest.approx(reference.sequences_scores[0].item(), abs=1e-4)


@pytest.mark.parametrize(("max_tokens", "num_beams"), [(1, 2), (3, 4)])
def test_a_beam_search_never_takes_a_banned_token(oracle, max_tokens, num_beams):
    """With two tokens allowed there are two beams at first, not two more at minus infinity."""
    params = SamplingParams(max_tokens=max_tokens, beam_width=4, allowed_token_ids=(5, 6))
    llm = LLM(str(oracle("llama").folder), kernel="torch", num_gpu_blocks_override=60)
    beams = llm.generate(oracle("llama").prompt(5), params)[0].outputs
    assert len(beams) == num_beams and {token for beam in beams for token in beam.token_ids} == {5, 6}


# ------------------------------------------------------------------------------------------------- through the engine


def answers(oracle: Any, **asked: Any) -> list[list[int]]:
    llm = LLM(str(oracle("llama").folder), kernel="torch", block_size=8, num_gpu_blocks_override=60)
    result = llm.generate(oracle("llama").prompt(9), SamplingParams(**{"max_tokens": 8, "temperature": 0} | asked))[0]
    return [answer.token_ids for answer in result.outputs]


def test_a_large_bias_and_a_single_allowed_token_win_at_any_temperature(oracle):
    assert answers(oracle, logit_bias={42: 100.0}) == [[42] * 8]
    assert answers(oracle, allowed_token_ids=(42,), temperature=5.0, seed=1, n=2) == [[42] * 8] * 2


def test_a_forbidden_token_is_replaced_by_the_next_best(oracle):
    plain = answers(oracle)[0]
    other = answers(oracle, forbidden_token_ids=(plain[3],))[0]
    assert other[:3] == plain[:3] and plain[3] not in other


def test_frequency_penalty_grows_until_a_favourite_gives_way(oracle):
    """A bias of 20 is worn down by 2 a time: about ten of the favourite, then something else."""
    favourite = {"logit_bias": {42: 20.0}, "max_tokens": 30}
    assert answers(oracle, **favourite)[0] == [42] * 30
    tokens = answers(oracle, **favourite, frequency_penalty=2.0)[0]
    first_other = next(i for i, token in enumerate(tokens) if token != 42)
    assert 1 < first_other < 20
    assert answers(oracle, **favourite, presence_penalty=2.0)[0][:20] == [42] * 20  # once, however many there are


def test_end_tokens_do_not_come_before_min_tokens(oracle):
    plain = answers(oracle)[0]
    ends = {"stop_token_ids": (plain[1],)}
    assert answers(oracle, **ends)[0] == plain[:2]
    later = answers(oracle, **ends, min_tokens=5, max_tokens=20)[0]
    assert len(later) >= 5 and plain[1] not in later[:5]


@pytest.mark.parametrize("memory", ["recompute", "swap"])
def test_penalties_remember_the_output_through_preemption(serve, oracle, memory):
    """Forked samples penalise their own past, and a sequence that is computed again has not forgotten it."""
    llama = oracle("llama")
    params = SamplingParams(
        max_tokens=16,
        n=3,
        seed=5,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={42: 8.0},
        min_tokens=12,
        ignore_eos=True,
    )
    prompts = [llama.prompt(length) for length in (20, 13, 5)]
    options: dict[str, Any] = {"block_size": 8, "kernel": "torch", "dtype": "float32"}
    roomy = serve(EngineConfig(str(llama.folder), num_gpu_blocks_override=100, **options), prompts, params)
    small = EngineConfig(
        str(llama.folder), num_gpu_blocks_override=12, swap_space=0.01 if memory == "swap" else 0, **options
    )
    crowded = serve(small, prompts, params)
    assert {event.mode for event in crowded.events if type(event).__name__ == "RequestPreempted"} == {memory}
    for number in range(len(prompts)):
        assert crowded.outputs(number) == roomy.outputs(number)
        assert len(set(map(tuple, roomy.outputs(number)))) == 3
