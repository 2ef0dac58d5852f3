"""Log-probabilities are those of a forward pass of `transformers` over the same tokens, whatever memory went through.

They are the model's own: the log-softmax of its logits before temperature, penalties, bans and top-k.
"""

from typing import Any

import pytest
import torch

from pagelens.engine import LLM, SamplingParams
from pagelens.engine.events import PrefixLookup, RequestPreempted, SequenceScheduled, Why
from pagelens.engine.sampler import top_logprobs

pytestmark = pytest.mark.usefixtures("one_thread")

CLOSE = 1e-3


@pytest.fixture(scope="module")
def llama(oracle: Any) -> Any:
    return oracle("llama")


def reference(llama: Any, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab_size]: row i is what the model thinks of token i + 1."""
    with torch.no_grad():
        return llama.model(torch.tensor([tokens])).logits[0].log_softmax(-1)


def assert_logprobs(found: dict[int, float], row: torch.Tensor, count: int, token: int) -> None:
    """The token's own and those of the `count` likeliest, likeliest first, with the reference's numbers."""
    assert token in found and len(found) == count + (token not in list(found)[:count])
    numbers = list(found.values())
    assert numbers[:count] == sorted(numbers[:count], reverse=True)
    assert numbers == pytest.approx(row[list(found)].tolist(), abs=CLOSE)
    if count:
        assert numbers[count - 1] >= row.topk(count).values[-1] - CLOSE, "none that is likelier was left out"


def small_llm(llama: Any, **options: Any) -> LLM:
    defaults = {"block_size": 8, "num_gpu_blocks_override": 100, "kernel": "torch"}
    return LLM(str(llama.folder), log_events=True, **(defaults | options))


def events(llm: LLM, kind: type) -> list[Any]:
    return [event for event in llm.engine.log.read(0) or [] if isinstance(event, kind)]


def assert_prompt_logprobs(llama: Any, prompt: list[int], found: Any, count: int) -> None:
    """Nothing for the first token, which nothing predicts, then one entry for each."""
    assert found is not None and len(found) == len(prompt) and found[0] is None
    for given, row, token in zip(found[1:], reference(llama, prompt), prompt[1:], strict=False):
        assert_logprobs(given, row, count, token)


MEMORY: dict[str, dict[str, Any]] = {
    "roomy": {},
    "chunked": {"max_num_batched_tokens": 16, "max_num_seqs": 16},
    "recompute": {"num_gpu_blocks_override": 9},
    "swap": {"num_gpu_blocks_override": 9, "swap_space": 0.01},
    "swap, chunked": {
        "num_gpu_blocks_override": 9,
        "swap_space": 0.01,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 16,
    },
    "recompute, uncached": {"num_gpu_blocks_override": 9, "enable_prefix_caching": False},
}


# --------------------------------------------------------------------------------------------------- of the output


@pytest.mark.parametrize("count", [0, 1, 5, 20])
@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0},
        {"temperature": 1.5, "top_k": 40, "min_p": 0.01},
        {"repetition_penalty": 1.5, "logit_bias": {7: 9.0}, "forbidden_token_ids": tuple(range(90, 150))},
    ],
    ids=["greedy", "sampled", "adjusted"],
)
def test_output_tokens_have_the_logprobs_of_the_model(llama, asked, count):
    llm = LLM(str(llama.folder), kernel="torch", block_size=8, num_gpu_blocks_override=60)
    prompts = [llama.prompt(length) for length in (1, 8, 20)]
    params = SamplingParams(max_tokens=8, n=3, seed=4, logprobs=count, **asked)
    for prompt, result in zip(prompts, llm.generate(prompts, params, progress=False), strict=True):
        assert result.prompt_logprobs is None
        assert [answer.index for answer in result.outputs] == [0, 1, 2]
        for answer in result.outputs:
            rows = reference(llama, prompt + answer.token_ids)[len(prompt) - 1 :]
            assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids) == 8
            for found, row, token in zip(answer.logprobs, rows, answer.token_ids, strict=False):
                assert_logprobs(found, row, count, token)


def test_nobody_pays_for_logprobs_that_were_not_asked_for(llama):
    llm = LLM(str(llama.folder), kernel="torch", num_gpu_blocks_override=60)
    result = llm.generate(llama.prompt(5), SamplingParams(max_tokens=3))[0]
    assert result.outputs[0].logprobs is None and result.prompt_logprobs is None


def test_the_drawn_token_is_added_if_it_is_not_among_the_likeliest():
    logits = torch.tensor([3.0, 1.0, 2.0, 0.0])
    assert list(top_logprobs(logits, 2, 2)) == [0, 2]
    assert list(top_logprobs(logits, 2, 3)) == [0, 2, 3]
    assert list(top_logprobs(logits, 0, 3)) == [3]
    assert list(top_logprobs(logits, 20, 3)) == [0, 2, 1, 3]
    assert top_logprobs(logits, 1, 0)[0] == pytest.approx(-0.4402, abs=1e-4)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("n", [1, 3])
def test_both_kinds_whatever_the_memory_went_through(llama, memory, n):
    """Recorded tokens keep theirs, and those after a preemption, by either way, are of the same tokens."""
    llm = small_llm(llama, **MEMORY[memory])
    prompts = [llama.prompt(length, stream) for length, stream in ((30, 0), (25, 1), (13, 0), (1, 0), (8, 0))]
    params = SamplingParams(max_tokens=12, seed=3, n=n, logprobs=3, prompt_logprobs=2)
    for prompt, result in zip(prompts, llm.generate(prompts, params, progress=False), strict=True):
        assert_prompt_logprobs(llama, prompt, result.prompt_logprobs, 2)
        for answer in result.outputs:
            rows = reference(llama, prompt + answer.token_ids)[len(prompt) - 1 :]
            assert answer.logprobs is not None and len(answer.logprobs) == 12
            for found, row, token in zip(answer.logprobs, rows, answer.token_ids, strict=False):
                assert_logprobs(found, row, 3, token)
    modes = {event.mode for event in events(llm, RequestPreempted)}
    assert bool(modes) == ("num_gpu_blocks_override" in MEMORY[memory])
    assert ("swap" in modes) == ("swap" in memory)  # beside which shared blocks may have to be given up and recomputed
    chunks = [event for event in events(llm, SequenceScheduled) if event.why == Why.PREFILL_CHUNK]
    assert bool(chunks) == ("chunked" in memory)


# --------------------------------------------------------------------------------------------------- of the prompt


@pytest.mark.parametrize("count", [0, 1, 20])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
def test_prompt_tokens_have_the_logprobs_of_the_model(llama, length, count):
    prompt = llama.prompt(length)
    result = small_llm(llama).generate(prompt, SamplingParams(max_tokens=2, prompt_logprobs=count))[0]
    assert_prompt_logprobs(llama, prompt, result.prompt_logprobs, count)


def test_a_request_for_prompt_logprobs_does_not_read_the_prefix_cache_but_fills_it(llama):
    llm = small_llm(llama)
    prompt, plain = llama.prompt(30), SamplingParams(max_tokens=2, temperature=0)
    asking = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=1)
    first = llm.generate(prompt, asking)[0]
    assert llm.generate(prompt, plain)[0].outputs[0].token_ids == first.outputs[0].token_ids
    again = llm.generate(prompt, asking)[0]
    assert [event.hit_tokens for event in events(llm, PrefixLookup)] == [0, 24, 0]
    assert_prompt_logprobs(llama, prompt, again.prompt_logprobs, 1)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted_in_the_middle_of_its_prompt(llama, mode):
    """A grows until B, half computed, has to go. Begun again or gone on with, B has every position in the end.

    Begun again it still must not read the cache, in which it has left its first half.
    """
    llm = small_llm(
        llama,
        block_size=1,
        num_gpu_blocks_override=48,
        max_num_batched_tokens=4,
        max_num_seqs=4,
        swap_space=0.01 if mode == "swap" else 0,
    )
    prompt = llama.prompt(40)
    params = [
        SamplingParams(max_tokens=30, temperature=0),
        SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=2),
    ]
    result = llm.generate([llama.prompt(2, stream=1), prompt], params, progress=False)[1]
    preempted = events(llm, RequestPreempted)[0]
    computed = preempted.lost_tokens + sum(preempted.num_computed_tokens)
    assert (preempted.request, preempted.mode) == ("B", mode) and 8 < computed < 40
    starts = [event.start for event in events(llm, SequenceScheduled) if event.sequence == "B.0"]
    assert starts.count(0) == (2 if mode == "recompute" else 1)
    assert_prompt_logprobs(llama, prompt, result.prompt_logprobs, 2)


def test_preempted_after_its_prompt_it_may_read_the_cache(llama):
    """Then all that was asked for is known."""
    llm = small_llm(llama, num_gpu_blocks_override=9)
    params = SamplingParams(max_tokens=14, temperature=0, prompt_logprobs=1)
    prompts = [llama.prompt(30), llama.prompt(25, stream=1)]
    results = llm.generate(prompts, params, progress=False)
    hits = [(event.sequence, event.hit_tokens) for event in events(llm, PrefixLookup)]
    assert hits[:2] == [("A.0", 0), ("B.0", 0)] and hits[2][0] == "B.0" and hits[2][1] > 0
    for prompt, result in zip(prompts, results, strict=True):
        assert_prompt_logprobs(llama, prompt, result.prompt_logprobs, 1)
