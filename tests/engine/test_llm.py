"""LLM.generate: the interface that users of vLLM know."""

import pytest

from pagelens.engine import LLM, ConfigError, RequestError, SamplingParams


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(kernel="torch", num_gpu_blocks_override=64, max_num_seqs=16, log_events=True)


GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["A hacker is", "When a program", "The term"]
    results = llm.generate(prompts, GREEDY)
    assert [result.prompt for result in results] == prompts
    for result in results:
        answer = result.outputs[0]
        assert answer.text == llm.engine.tokenizer.decode(answer.token_ids)
        assert answer.finish_reason == "length" and len(answer.token_ids) == 6
        assert 0 < result.time_to_first_token <= result.time_finished


def test_a_single_prompt_may_be_text_or_token_ids(llm: LLM) -> None:
    by_text = llm.generate("A hacker is", GREEDY)
    by_ids = llm.generate(llm.engine.tokenizer.encode("A hacker is"), GREEDY)
    assert by_text[0].outputs == by_ids[0].outputs


def test_each_prompt_may_have_its_own_params(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (2, 3)]
    assert [len(result.outputs[0].token_ids) for result in llm.generate(["One", "Two"], params)] == [2, 3]
    with pytest.raises(RequestError, match="there are 3 prompts but 2 SamplingParams"):
        llm.generate(["One", "Two", "Three"], params)


def test_n_samples_differ_and_are_reproducible(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, n=4, seed=3)
    first, second = (llm.generate("A hacker is a person who", params)[0] for _ in range(2))
    assert [answer.index for answer in first.outputs] == [0, 1, 2, 3]
    assert len({answer.text for answer in first.outputs}) > 1
    assert first.outputs == second.outputs


def test_no_prompts_no_results(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_one_bad_prompt_refuses_the_batch_before_anything_runs(llm: LLM) -> None:
    steps = llm.engine.num_steps
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate(["fine", ""], GREEDY)
    assert llm.engine.num_steps == steps and not llm.engine.has_work


def test_interrupting_generate_leaves_a_clean_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = llm.engine.step, []

    def interrupted() -> list:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["A hacker is", "When"], GREEDY)
    assert not llm.engine.has_work and not llm.engine.requests
    assert llm.engine.manager.pool.num_free == 64


def test_a_prompt_with_markup_and_odd_characters_passes_through(llm: LLM) -> None:
    prompt = "<img src=x onerror=alert(1)> \u0000 🙂 [bold]"
    assert llm.generate(prompt, GREEDY)[0].prompt == prompt


def test_gpu_memory_utilization_without_a_gpu_warns_and_names_what_to_use() -> None:
    with pytest.warns(UserWarning, match="num_gpu_blocks_override or kv_cache_memory_bytes"):
        LLM(kernel="torch", gpu_memory_utilization=0.5)


def test_the_pool_is_sized_by_bytes_or_by_blocks() -> None:
    per_token = LLM(kernel="torch", num_gpu_blocks_override=4).engine.loaded.spec.bytes_per_token()
    assert LLM(kernel="torch", kv_cache_memory_bytes=10 * 16 * per_token).engine.manager.pool.num_blocks == 10
    with pytest.raises(ConfigError, match=r"may take 100 bytes \(kv_cache_memory_bytes\), but one block of 16 tokens"):
        LLM(kernel="torch", kv_cache_memory_bytes=100)


def test_a_model_length_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 100000, but jargon was made for"):
        LLM(kernel="torch", max_model_len=100_000)
