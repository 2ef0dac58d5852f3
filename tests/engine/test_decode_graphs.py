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
    most = knobs["max_num_seqs"]
    assert set(recorder.replays) == {min(size, most) for size in (1, 2, 4, 8)}
    assert sum(recorder.replays.values()) > 10, "most steps are decodes"


def test_padding_writes_nothing(checkpoints):
    """Seven sequences in a recording for eight, of which one after the other ends: the cache is that of plain steps."""
    plain, recorded = (
        LLM(str(checkpoints["llama"]), dtype="float32", block_size=8, num_gpu_blocks_override=60, max_num_seqs=8)
        for _ in range(2)
    )
    recorder = Recorder()
    record(recorded, recorder)
    for number, prompt in enumerate([*PROMPTS, [7] * 9, [8] * 9]):
        for llm in (plain, recorded):
            llm.engine.add_request(prompt, SamplingParams(max_tokens=4 + number, temperature=0, ignore_eos=True))
    while recorded.engine.has_work:
        for llm in (plain, recorded):
            llm.engine.step()
        torch.testing.assert_close(recorded.engine.runner.cache.kv, plain.engine.runner.cache.kv, rtol=0, atol=1e-4)
    assert recorder.replays == {1: 1, 2: 1, 4: 2, 8: 5}  # of 7, 7, 7, 6 and 5 sequences, then of 4 and 3, 2, and 1


def test_more_sequences_than_there_can_be_are_computed(checkpoints):
    """As beams can make them in a step."""
    llm = LLM(str(checkpoints["llama"]), dtype="float32", num_gpu_blocks_override=60, max_num_seqs=4)
    recorder = Recorder()
    graphs = record(llm, recorder).engine.runner.graphs
    step = graphs._make_batch(5)
    assert graphs.logits(step, lambda batch: batch.token_ids) is step.token_ids
    assert not any(recorder.replays.values())


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
