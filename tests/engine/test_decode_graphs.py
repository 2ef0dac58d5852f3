"""Decode steps replayed from recordings: the same tokens and the same cache as when each is computed by itself.

A CUDA graph needs a GPU. Here a recording runs the forward pass again, on the same tensors, into the same result, which
is what a graph does: it knows nothing of the step but what was copied into those tensors.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pagelens.engine import LLM, SamplingParams
from pagelens.engine.decode_graphs import DecodeGraphs, can_record

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [list(range(3, 3 + length)) for length in (19, 33, 5, 40, 12)]


class Recorder:
    """Counts the recordings, and the replays of each number of sequences."""

    def __init__(self) -> None:
        self.replays: dict[int, int] = {}

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result = run()
        size = len(result)
        self.replays[size] = 0

        def replay() -> None:
            self.replays[size] += 1
            result.copy_(run())

        return result, replay


def record(llm: LLM, recorder: Any) -> LLM:
    """Have its decode steps recorded."""
    engine = llm.engine
    engine.runner.graphs = DecodeGraphs(
        engine.runner.forward, engine.loaded, engine.config, engine.max_model_len, torch.device("cpu"), recorder
    )
    return llm


def generate(llm: LLM, **params: Any) -> list[list[int]]:
    """Sequences of different lengths, so that the batch shrinks step by step."""
    each = [SamplingParams(**{"max_tokens": 4 + 3 * i, "temperature": 0, **params}) for i in range(len(PROMPTS))]
    return [output.token_ids for done in llm.generate(PROMPTS, each, progress=False) for output in done.outputs]


@pytest.mark.parametrize("kernel", ["torch", "auto"])
@pytest.mark.parametrize(
    "options, params",
    [
        ({}, {}),
        ({"num_gpu_blocks_override": 14}, {}),  # some give way and come back
        ({"num_gpu_blocks_override": 14, "swap_space": 0.01}, {}),
        ({"max_num_batched_tokens": 16, "max_num_seqs": 3}, {}),  # prompts in chunks, decodes beside them
        ({}, {"n": 2, "temperature": 1.0, "seed": 5}),
        ({}, {"beam_width": 2}),
        ({}, {"prompt_logprobs": 2}),
    ],
)
def test_replayed_steps_give_the_same(checkpoints, kernel, options, params):
    knobs = {"block_size": 8, "num_gpu_blocks_override": 60, "max_num_seqs": 6, "kernel": kernel} | options
    plain, recorded = (LLM(str(checkpoints["qwen2"]), dtype="float32", **knobs) for _ in range(2))
    recorder = Recorder()
    record(recorded, recorder)
    assert generate(recorded, **params) == generate(plain, **params)
    assert set(recorder.replays) <= {1, 2, 4, knobs["max_num_seqs"]}  # powers of two, and the most that there can be
    assert all(recorder.replays.values())


def test_padding_writes_nothing(checkpoints):
    """Five sequences in a recording for eight: the blocks of nobody stay as they were."""
    llm = LLM(str(checkpoints["llama"]), dtype="float32", block_size=8, num_gpu_blocks_override=60, max_num_seqs=8)
    recorder = Recorder()
    record(llm, recorder)
    cache, ref_count = llm.engine.runner.cache.kv, llm.engine.manager.pool.ref_count
    for prompt in PROMPTS:
        llm.engine.add_request(prompt, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    while llm.engine.has_work:
        owned, before = list(ref_count), cache.clone()
        llm.engine.step()
        others = [block for block in range(60) if not owned[block] and not ref_count[block]]
        assert len(others) > 30 and torch.equal(cache[others], before[others])
    assert recorder.replays == {8: 3}


def test_what_cannot_be_recorded_is_computed_and_said_once(checkpoints, recwarn):
    def fail(run: Callable[[], Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    plain, broken = (LLM(str(checkpoints["llama"]), dtype="float32", num_gpu_blocks_override=60) for _ in range(2))
    record(broken, fail)
    assert generate(broken) == generate(plain)
    said = [str(warning.message) for warning in recwarn if "CUDA graph" in str(warning.message)]
    assert len(said) == 1 and "not permitted" in said[0] and "one by one" in said[0]


def test_only_our_own_models_on_compiled_kernels_are_recorded(checkpoints, monkeypatch):
    llm = LLM(str(checkpoints["llama"]), dtype="float32", num_gpu_blocks_override=60)
    loaded = llm.engine.loaded
    assert not can_record(loaded) and llm.engine.runner.graphs is None
    kernels = loaded.attention.kernels
    compiled = type(kernels)(
        **{name: getattr(kernels, name) for name in kernels.__dataclass_fields__} | {"name": "triton"}
    )
    monkeypatch.setattr(loaded.attention, "kernels", compiled)
    assert can_record(loaded)
    monkeypatch.setattr(loaded, "model", torch.nn.Linear(1, 1))
    assert not can_record(loaded)
