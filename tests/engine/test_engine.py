"""The step in its three phases, requests that cannot be served, and a model that fails."""

import pytest
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import ConfigError, EngineConfig, RequestError, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.events import Phase
from pagelens.engine.integrity import check_integrity, check_map


def test_a_step_is_plan_launch_commit() -> None:
    engine = scripted_engine()
    request = engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, temperature=0))
    plan = engine.plan()
    assert [(item.sequence.name, item.start, item.num_tokens) for item in plan.scheduled] == [("A.0", 0, 3)]
    assert request.sequences[0].num_computed_tokens == 0, "planned is not computed"
    results = engine.launch(plan)
    assert [sample.token_id for result in results for sample in result.samples] == [3]
    outputs = engine.commit(plan, results)
    assert [output.token_id for output in outputs] == [3]
    assert request.sequences[0].num_computed_tokens == 3
    phases = [event.phase for event in engine.log.read(0) or []]
    assert phases == sorted(phases, key=list(Phase).index)


def test_a_request_ends_at_max_tokens_a_stop_token_or_the_model_length() -> None:
    engine = scripted_engine(num_blocks=32, max_model_len=12)
    ended = {
        "length": engine.add_request([1, 2, 3], SamplingParams(max_tokens=4)),
        "stop": engine.add_request([1, 2, 3], SamplingParams(max_tokens=4, stop_token_ids=(5,))),
        "model": engine.add_request([1, 2, 3], SamplingParams(max_tokens=100)),
    }
    while engine.has_work:
        engine.step()
    assert ended["length"].sequences[0].output_token_ids == [3, 4, 5, 6]
    assert ended["stop"].sequences[0].output_token_ids == [3, 4, 5]
    assert ended["stop"].sequences[0].finish_reason == "stop"
    assert ended["model"].sequences[0].num_tokens == 12
    whys = [event.why for event in engine.log.read(0) or [] if isinstance(event, ev.SequenceFinished)]
    assert sorted(whys) == ["end_of_sequence", "max_model_len", "max_tokens"]


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "the prompt is empty: give at least one token"),
        (
            [1] * 64,
            {},
            r"the prompt has 64 tokens, but prompt and output together may have 64 \(max_model_len\): shorten",
        ),
        ([1] * 40, {}, "need 11 blocks, but the pool has 8: shorten the prompt or raise num_gpu_blocks_override"),
        ("text", {}, "this model has no tokenizer: give the prompt as a list of token ids"),
        ([1, -5], {}, "prompt token -5 is not one of the model's"),
        ([1, "x"], {}, "prompt token 'x' is not one of the model's"),
        ([1], {"n": 9}, r"n is 9, but at most 8 sequences run \(max_num_seqs\)"),
    ],
)
def test_a_request_that_cannot_be_served_says_why_and_the_engine_goes_on(prompt, params, message) -> None:
    engine = scripted_engine(num_blocks=8, block_size=4, max_model_len=64)
    other = engine.add_request([1, 2, 3], SamplingParams(max_tokens=5))
    engine.step()
    with pytest.raises(RequestError, match=message):
        engine.add_request(prompt, SamplingParams(**params))
    rejected = engine.log.read(0)[-1]
    assert isinstance(rejected, ev.RequestRejected) and rejected.request == "B"
    while engine.has_work:
        engine.step()
    assert len(other.sequences[0].output_token_ids) == 5
    assert engine.add_request([1], SamplingParams(max_tokens=1)).request_id == "B", "the name was not used up"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, allowed is at least 1"),
        ({"temperature": -1}, r"temperature is -1, allowed is 0 \(greedy\) to 100"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 2}, r"top_p is 2, allowed is above 0 and at most 1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"n": 0}, "n is 0, allowed is 1 to 64"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_sampling_params_name_the_value_and_the_allowed_range(params: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 12}, "block_size is 12, allowed is a power of two from 1 to 256"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5, allowed is above 0 and at most 1"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override is 0, allowed is at least 1"),
        ({"max_num_batched_tokens": 8}, r"max_num_batched_tokens is 8, allowed is at least max_num_seqs \(64\)"),
        ({"kernel": "cuda"}, "kernel is 'cuda', allowed is auto or triton or numba or torch"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"swap_space": -1}, "swap_space is -1, allowed is 0 to 1024 GiB"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2, allowed is 1: this version runs on a single device"),
        ({"watermark": 1}, "watermark is 1"),
    ],
)
def test_engine_options_name_the_value_and_the_allowed_range(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("no_such_module:Class", "policy 'no_such_module:Class' cannot be loaded"),
        ("scripted", "give it as 'module:Class'"),
        ("scripted:ShadowRunner", "cannot be loaded"),
        ("collections:OrderedDict", "lacks admit, choose_victim, choose_eviction"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_refused(policy: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scripted_engine(policy=policy)


def test_a_failed_launch_ends_its_sequences_unseals_what_it_sealed_and_nothing_else() -> None:
    runner = ShadowRunner(16, 4)
    engine = scripted_engine(16, 4, runner)
    prompt = list(range(9))
    failed = engine.add_request(prompt, SamplingParams(max_tokens=4))
    runner.fail_next = True
    outputs = engine.step()
    assert [output.finish_reason for output in outputs] == ["error"]
    assert failed.sequences[0].finish_reason == "error"
    assert engine.log.snapshot().hash == {}, "what was never written must not be found again"
    failure = next(event for event in engine.log.read(0) if isinstance(event, ev.StepFailed))
    assert failure.error == "RuntimeError: the device is gone"
    check_integrity(engine)
    again = engine.add_request(prompt, SamplingParams(max_tokens=4))
    while engine.has_work:
        engine.step()
    assert again.sequences[0].finish_reason == "length"
    check_map(engine, engine.log.snapshot())


def test_ctrl_c_in_the_middle_of_a_launch_leaves_an_engine_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ShadowRunner(16, 4)
    engine = scripted_engine(16, 4, runner)
    prompt = list(range(9))
    engine.add_request(prompt, SamplingParams(max_tokens=4))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", lambda launch: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    check_integrity(engine)
    engine.add_request(prompt, SamplingParams(max_tokens=4))
    while engine.has_work:
        engine.step()
    check_map(engine, engine.log.snapshot())


def test_requests_are_named_like_columns_of_a_sheet() -> None:
    engine = scripted_engine(num_blocks=64)
    names = [engine.add_request([1], SamplingParams(max_tokens=1)).request_id for _ in range(28)]
    assert [*names[:3], *names[25:]] == ["A", "B", "C", "Z", "AA", "AB"]


def test_abort_of_an_unknown_request_says_so() -> None:
    with pytest.raises(RequestError, match="there is no unfinished request 'Q'"):
        scripted_engine().abort("Q")
