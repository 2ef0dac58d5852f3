"""Beam search as forks of one prompt: results are transformers', blocks are shared, dropped beams give theirs back."""

import random
from pathlib import Path

import pytest
import torch
from scripted import ShadowRunner, scripted_engine
from transformers import LlamaConfig, LlamaForCausalLM

from pagelens.engine import LLM, RequestError, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.integrity import check_integrity, check_map

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT_LENGTHS = (3, 8, 13)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("beam")
    model.save_pretrained(folder)
    return folder, model


@pytest.mark.parametrize(
    "memory", [{}, {"num_gpu_blocks_override": 9}, {"num_gpu_blocks_override": 9, "swap_space": 0.01}]
)
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0])
def test_sequences_and_scores_are_those_of_transformers(checkpoint, memory, early_stopping, length_penalty) -> None:
    folder, model = checkpoint
    generator = random.Random(f"{early_stopping} {length_penalty}")
    prompts = [[generator.randrange(512) for _ in range(length)] for length in PROMPT_LENGTHS]
    ends = sorted({generator.randrange(512) for _ in range(40)})  # so many that beams end at different lengths
    llm = LLM(str(folder), kernel="torch", block_size=8, log_events=True, **memory)
    results = llm.generate(
        prompts,
        SamplingParams(
            max_tokens=16,
            beam_width=4,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            stop_token_ids=tuple(ends),
        ),
    )
    for prompt, result in zip(prompts, results, strict=True):
        reference = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=16,
            num_beams=4,
            num_return_sequences=4,
            do_sample=False,
            early_stopping=early_stopping,
            length_penalty=length_penalty,
            eos_token_id=ends,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        scores = [score for score in reference.sequences_scores.tolist() if score > -1e8]
        assert [beam.score for beam in result.outputs] == pytest.approx(scores, abs=1e-4)
        for beam, row in zip(result.outputs, reference.sequences[:, len(prompt) :].tolist(), strict=False):
            assert beam.token_ids == row[: len(beam.token_ids)]
            assert beam.finish_reason == ("stop" if beam.token_ids[-1] in ends else "length")
    totals = llm.engine.log.snapshot().totals
    assert totals["BlockCopied"] and totals["SequenceForked"]
    assert bool(memory) == ("RequestPreempted" in totals) and ("swap_space" in memory) == ("BlocksSwappedOut" in totals)
    check_integrity(llm.engine)
    check_map(llm.engine, llm.engine.log.snapshot())


@pytest.mark.parametrize("seed", range(25))
def test_crowded_beams_find_their_own_tokens_again_and_all_end(seed: int) -> None:
    generator = random.Random(seed)
    num_blocks, block_size, host_blocks = (
        generator.randint(7, 14),
        generator.choice([4, 8]),
        generator.choice([0, 5, 40]),
    )
    runner = ShadowRunner(num_blocks, block_size, seed, host_blocks)
    engine = scripted_engine(num_blocks, block_size, runner, host_blocks, max_num_seqs=16)
    for length in PROMPT_LENGTHS:
        prompt = [generator.randrange(50) for _ in range(length)]
        engine.add_request(prompt, SamplingParams(max_tokens=12, beam_width=4, stop_token_ids=(3, 4)))
    for _ in range(2000):
        if not engine.has_work:
            break
        plan = engine.plan()
        check_integrity(engine)
        engine.commit(plan, engine.launch(plan))
        check_integrity(engine)
    assert not engine.has_work and engine.manager.pool.num_free == num_blocks


def test_a_dropped_beam_returns_its_blocks_at_once() -> None:
    engine = scripted_engine(64, 4, ShadowRunner(64, 4))
    engine.add_request(list(range(6)), SamplingParams(max_tokens=12, beam_width=4))
    while engine.has_work:
        engine.step()
    events = engine.log.read(0) or []
    dropped = [event for event in events if isinstance(event, ev.SequenceFinished) and event.why == "beam_dropped"]
    assert dropped
    for finished in dropped:
        releases = [e for e in events if isinstance(e, ev.BlockReleased) and e.sequence == finished.sequence]
        assert releases and releases[-1].step == finished.step


def test_a_failed_step_or_an_abort_ends_all_beams() -> None:
    runner = ShadowRunner(64, 4)
    engine = scripted_engine(64, 4, runner)
    for name in ("A", "B"):
        engine.add_request(list(range(6)), SamplingParams(max_tokens=12, beam_width=3), request_id=name)
    for _ in range(3):
        engine.step()
    engine.abort("A")
    runner.fail_next = True
    engine.step()
    assert not engine.has_work and not engine.requests and engine.manager.pool.num_free == 64


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"beam_width": 1}, r"beam_width is 1, allowed is 0 \(off\) or 2 to 32"),
        ({"beam_width": 4, "n": 2}, "n is 2, allowed is 1 when beam_width is set"),
        ({"beam_width": 4, "early_stopping": "soon"}, "early_stopping is 'soon', allowed is True, False or \"never\""),
    ],
)
def test_validation(params: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**params)
