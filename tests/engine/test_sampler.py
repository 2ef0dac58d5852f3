"""Sampling draws from the softmax of the logits, from the tokens that top-k and top-p leave, and reproducibly.

A draw is a pure function of (logits, seed, sample index, position), so the memory's adventures cannot change it: alone,
in a batch, after a preemption or with a cache hit the tokens are the same.
"""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from pagelens.engine import LLM, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine import sampler as sampler_module
from pagelens.engine.events import Why
from pagelens.engine.sampler import gumbel_noise, sample

pytestmark = pytest.mark.usefixtures("one_thread")


def random_logits(seed: int, size: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2, size=size).astype(np.float32)


def draws(logits: np.ndarray, params: SamplingParams, keys: list[tuple[int, int, int]]) -> np.ndarray:
    """How often each token is drawn with each of the keys (seed, sample index, position)."""
    drawn = [sample(torch.from_numpy(logits), params, *key) for key in keys]
    return np.bincount(drawn, minlength=len(logits))


# ------------------------------------------------------------------------------------------------- which tokens remain


def test_temperature_0_takes_the_largest_logit_and_the_first_of_equals():
    greedy = SamplingParams(temperature=0, top_k=3, top_p=0.5)
    assert sample(torch.tensor([0.5, 2.0, 2.0, -1.0]), greedy, 0, 0, 0) == 1
    for seed in range(50):
        logits = random_logits(seed)
        assert sample(torch.from_numpy(logits), greedy, seed, 0, 0) == logits.argmax()


@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 1e-40, 1e-320])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_a_temperature_next_to_0_is_greedy(temperature, top_p):
    params = SamplingParams(temperature=temperature, top_p=top_p)
    assert draws(np.array([1, 5, 3, -2], np.float32), params, [(0, 0, i) for i in range(50)])[1] == 50


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits.astype(np.float64) - logits.max())
    return exponentials / exponentials.sum()


def expected_tokens(logits: np.ndarray, params: SamplingParams) -> set[int]:
    """Min-p, then top-k, then top-p of what is left, written as their definitions read."""
    probabilities = softmax(logits / params.temperature)
    ranked = sorted(range(len(logits)), key=lambda token: -logits[token])
    ranked = [token for token in ranked if probabilities[token] >= params.min_p * probabilities.max()]
    ranked = ranked[: params.top_k or None]
    total, kept = sum(probabilities[token] for token in ranked), []
    for token in ranked:
        kept.append(token)
        if sum(probabilities[kept]) >= params.top_p * total:
            break
    return set(kept)


def possible_tokens(monkeypatch: pytest.MonkeyPatch, logits: np.ndarray, params: SamplingParams) -> set[int]:
    """The tokens that can be drawn at all: noise that favours one token beyond all measure draws it, if it may."""
    possible = set()
    for token in range(len(logits)):
        noise = np.where(np.arange(len(logits)) == token, 1e6, 0).astype(np.float32)
        monkeypatch.setattr(sampler_module, "gumbel_noise", lambda *_, noise=noise: noise)
        possible |= {sample(torch.from_numpy(logits), params, 0, 0, 0)} & {token}
    return possible


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.001, 0.3, 0.8, 0.99, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 2, 7, 20, 100])
def test_top_k_and_top_p_leave_exactly_the_right_tokens(monkeypatch, top_k, top_p, temperature):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    for seed in range(5):
        logits = random_logits(seed)
        assert possible_tokens(monkeypatch, logits, params) == expected_tokens(logits, params)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("others", [{}, {"top_k": 4}, {"top_p": 0.7}, {"top_k": 4, "top_p": 0.7}])
@pytest.mark.parametrize("min_p", [1e-6, 0.01, 0.1, 0.5, 1.0])
def test_min_p_leaves_exactly_the_right_tokens_alone_and_before_the_others(monkeypatch, min_p, others, temperature):
    params = SamplingParams(temperature=temperature, min_p=min_p, **others)
    for seed in range(5):
        logits = random_logits(seed)
        assert possible_tokens(monkeypatch, logits, params) == expected_tokens(logits, params)


def test_min_p_of_1_is_greedy_but_for_equals():
    params = SamplingParams(min_p=1, temperature=2)
    assert draws(np.array([1, 5, 3, 5], np.float32), params, [(0, 0, i) for i in range(100)])[[0, 2]].sum() == 0
    assert draws(np.array([1, 5, 3, 4.99], np.float32), params, [(0, 0, i) for i in range(50)])[1] == 50


@pytest.mark.parametrize("params", [SamplingParams(top_k=2), SamplingParams(top_p=0.5)])
def test_of_equals_no_more_are_left_than_were_asked_for(monkeypatch, params):
    assert len(possible_tokens(monkeypatch, np.zeros(4, np.float32), params)) == 2


# -------------------------------------------------------------------------------------------------- the distribution


@pytest.mark.parametrize(
    "vary", ["position", "sample index", "seed"]
)  # whatever changes from draw to draw, the draws are independent
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.5, top_k=6, top_p=0.9),
        SamplingParams(temperature=1.5, min_p=0.1),
    ],
)
def test_draws_follow_the_softmax(params, vary):
    logits, number = random_logits(1), 4000
    key = {"position": lambda i: (7, 0, i), "sample index": lambda i: (7, i, 3), "seed": lambda i: (i, 0, 3)}[vary]
    counts = draws(logits, params, [key(i) for i in range(number)])
    kept = sorted(expected_tokens(logits, params))
    expected = number * softmax(logits[kept] / params.temperature)
    assert counts.sum() == counts[kept].sum()
    often = expected >= 5  # chi-square's rule of thumb; the rare ones count as one
    observed = np.append(counts[kept][often], counts[kept][~often].sum())
    expected = np.append(expected[often], expected[~often].sum() + 1e-9)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    freedom = len(observed) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)  # one right sampler in some hundred thousand fails


def test_noise_is_gumbel_noise():
    noise = np.sort(gumbel_noise(100_000, seed=3, sample_index=0, position=0).astype(np.float64))
    cumulative = np.exp(-np.exp(-noise))
    steps = np.arange(1, len(noise) + 1) / len(noise)
    assert np.abs(cumulative - steps).max() < 2.2 / np.sqrt(len(noise))  # Kolmogorov-Smirnov, p about 1e-4


# ---------------------------------------------------------------------------------------------------- reproducibility


def test_equal_keys_draw_equal_noise_and_others_do_not():
    keys = list(itertools.product([0, 1, 2**62], [0, 1, 63], [0, 1, 1000]))
    noises = {tuple(gumbel_noise(16, *key)) for key in keys}
    assert len(noises) == len(keys)
    assert noises == {tuple(gumbel_noise(16, *key)) for key in keys}


@pytest.mark.parametrize("engine_seed", [0, 7, 2**63 - 1])
def test_a_seed_of_the_engine_never_coincides_with_one_of_a_request(monkeypatch, oracle, engine_seed):
    """By arithmetic: a request's own is below 2**63, a derived one has the request's number above bit 64."""
    seeds: list[int] = []

    def record(logits: object, params: object, seed: int, *others: object) -> int:
        seeds.append(seed)
        return 0

    monkeypatch.setattr(sampler_module, "sample", record)
    llm = LLM(str(oracle("llama").folder), kernel="torch", num_gpu_blocks_override=40, seed=engine_seed)
    own = [0, 7, engine_seed, 2**63 - 1]
    params = [SamplingParams(max_tokens=1), *(SamplingParams(max_tokens=1, seed=seed) for seed in own)] * 2
    llm.generate([[1]] * len(params), params, progress=False)
    derived = [seed for seed, its in zip(seeds, params, strict=True) if its.seed is None]
    assert [seed for seed, its in zip(seeds, params, strict=True) if its.seed is not None] == own * 2
    assert len(set(derived)) == 2 and min(derived) >= 2**64 and max(derived) < 2**128
    assert not np.array_equal(gumbel_noise(16, engine_seed, 0, 0), gumbel_noise(16, engine_seed | 1 << 64, 0, 0))


def test_neighbouring_keys_share_no_stretch_of_noise():
    """A counter that ran on into the next position would repeat the tail of one draw in the head of another."""
    seen: set[float] = set()
    for key in itertools.product([5, 6], [0, 1], [10, 11]):
        noise = set(gumbel_noise(1000, *key).tolist())
        assert len(seen & noise) < 10  # of a million pairs of float32 a few are equal by chance
        seen |= noise


SAMPLED = SamplingParams(max_tokens=12, temperature=1.0, top_k=50, top_p=0.95, seed=11, ignore_eos=True)


def config(folder: object, **options: object) -> EngineConfig:
    options = {"block_size": 8, "num_gpu_blocks_override": 100, "kernel": "torch", "dtype": "float32"} | options
    return EngineConfig(str(folder), **options)


NUM_REQUESTS, NUM_TOKENS = 32, 12
ROOMY = {
    "num_gpu_blocks_override": 300,
    "enable_prefix_caching": False,
    "max_num_seqs": NUM_REQUESTS,
    "max_num_batched_tokens": 1024,
}
CROWDED = ROOMY | {"num_gpu_blocks_override": 40}
WAYS: dict[str, dict[str, object]] = {
    "in a batch of 32": ROOMY,
    "in chunks": ROOMY | {"max_num_batched_tokens": 32},
    "after preemption by recompute": CROWDED,
    "after preemption by swap": CROWDED | {"swap_space": 0.01},
    "with a cache hit": ROOMY | {"enable_prefix_caching": True},
}


@pytest.fixture(scope="module")
def prompts_and_params(oracle: Any) -> tuple[list[list[int]], list[SamplingParams]]:
    """32 prompts of 1 to 47 tokens, each request with a seed of its own."""
    prompts = [oracle("qwen3").prompt(1 + 3 * (i // 2), stream=i % 2) for i in range(NUM_REQUESTS)]
    seeded = [SamplingParams(max_tokens=NUM_TOKENS, seed=100 + i, ignore_eos=True) for i in range(NUM_REQUESTS)]
    return prompts, seeded


@pytest.fixture(scope="module")
def alone(oracle: Any, prompts_and_params: Any) -> list[list[int]]:
    """The tokens of each request when there is no other."""
    llm = LLM(str(oracle("qwen3").folder), kernel="torch", block_size=8, **ROOMY)
    return [
        llm.generate(prompt, params)[0].outputs[0].token_ids for prompt, params in zip(*prompts_and_params, strict=True)
    ]


@pytest.fixture(scope="module")
def near_ties(oracle: Any, prompts_and_params: Any, alone: Any) -> list[list[int]]:
    """Of each request the tokens that, noise added, were hardly ahead of the second best: these may change places."""
    found = []
    for prompt, params, tokens in zip(*prompts_and_params, alone, strict=True):
        with torch.no_grad():
            rows = oracle("qwen3").model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        noise = [gumbel_noise(rows.shape[1], params.seed, 0, len(prompt) + i) for i in range(len(tokens))]
        best = (rows + torch.from_numpy(np.stack(noise))).topk(2)
        assert best.indices[:, 0].tolist() == tokens, "the draw is the largest of logits and noise, in transformers too"
        found.append((best.values[:, 0] - best.values[:, 1] < 1e-3).nonzero().flatten().tolist())
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_tokens_are_those_of_a_request_that_is_alone(oracle, prompts_and_params, alone, near_ties, way):
    prompts, params = prompts_and_params
    llm = LLM(str(oracle("qwen3").folder), kernel="torch", block_size=8, log_events=True, **WAYS[way])
    if way == "with a cache hit":
        llm.generate(prompts, SamplingParams(max_tokens=1), progress=False)
    first = len(llm.engine.log.read(0) or [])
    results = llm.generate(prompts, params, progress=False)
    for result, tokens, ties in zip(results, alone, near_ties, strict=True):
        where = next((i for i, token in enumerate(result.outputs[0].token_ids) if token != tokens[i]), None)
        assert where is None or where in ties, f"{result.request_id} differs in token {where}"
    total = sum(map(len, near_ties))
    print(f"{way}: {total} near ties in {NUM_REQUESTS * NUM_TOKENS} tokens")
    assert total < 0.01 * NUM_REQUESTS * NUM_TOKENS

    events = llm.engine.log.read(first) or []
    most = max(len(event.sequences) for event in events if isinstance(event, ev.StepPlanned))
    assert most == NUM_REQUESTS if way == "in a batch of 32" else most > 1
    modes = {event.mode for event in events if isinstance(event, ev.RequestPreempted)}
    assert modes == ({way.split()[-1]} if "preemption" in way else set())
    hits = [event for event in events if isinstance(event, ev.PrefixLookup) and event.hit_tokens]
    assert bool(hits) == (way == "with a cache hit")
    assert any(e.why == Why.PREFILL_CHUNK for e in events) == (way == "in chunks")


def test_samples_of_a_request_differ_and_each_is_the_same_after_preemption(serve, oracle, checkpoints):
    folder, prompt, other = checkpoints["llama"], oracle("llama").prompt(13), oracle("llama").prompt(30, stream=1)
    params = SamplingParams(max_tokens=12, n=4, seed=11, ignore_eos=True)
    roomy = serve(config(folder), [prompt], params)
    assert len(set(map(tuple, roomy.outputs()))) == 4

    crowd = serve(config(folder, num_gpu_blocks_override=12), [other, prompt], [SAMPLED, params])
    assert "B" in [event.request for event in crowd.events if type(event).__name__ == "RequestPreempted"]
    assert crowd.outputs(1) == roomy.outputs()


def test_the_first_sample_does_not_depend_on_how_many_there_are(serve, oracle, checkpoints):
    prompt = oracle("llama").prompt(13)
    one, four = (
        serve(config(checkpoints["llama"]), [prompt], SamplingParams(max_tokens=12, n=n, seed=11)) for n in (1, 4)
    )
    assert one.outputs() == four.outputs()[:1]


def test_requests_without_a_seed_differ_and_follow_the_seed_of_the_engine(serve, oracle, checkpoints):
    folder, prompts = checkpoints["llama"], [oracle("llama").prompt(13)] * 3
    params = SamplingParams(max_tokens=12)

    def outputs(seed: int) -> list[tuple[int, ...]]:
        served = serve(config(folder, seed=seed), prompts, params)
        return [tuple(served.outputs(i)[0]) for i in range(3)]

    assert len(set(outputs(0))) == 3
    assert outputs(0) == outputs(0)
    assert outputs(0) != outputs(1)
