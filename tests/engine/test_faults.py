"""The faults that users of small engines met (../shared/REFERENCE.md), each with a test of its number here;
behind the + stands where more is tested.

 1  KV exhausted is an assert; a sequence that outgrows the pool kills the engine  + test_scheduler, test_stopping
 2  off by one around `len % block_size == 1`                                   + test_block_table, test_equality
 3  a stale hash after a block is reused                                        + test_random_runs
 4  identical prompts in one step take distinct blocks                          + test_scheduler
 5  a full prefix hit makes a query of length zero                              + test_prefix_cache
 6  a crash on computing again one token past a multiple of the block size
 7  decodes starve while prompts keep arriving                                  + test_scheduler
 8  it does not run: no CUDA, no Triton, Windows                                + ../test_frame, ../kernels
 9  options accepted and ignored; finish_reason always "stop"; usage zero       + test_sampling_params
10  other processes' memory makes the number of blocks negative                 + test_llm
11  illegal access when scheduling overlaps execution                           + test_engine_loop, test_debugger
12  worst-case reservation delays the first token                               + ../../benchmarks/waste.py
13  preemption storms: most of the compute is spent again                       + test_fairness, test_swap
14  hash collisions                                                             + test_prefix_cache
15  silently wrong output when the cache is off                                 + test_equality
16  speeds that nobody can reproduce                                            + ../benchmarks
17  no life-cycle events to draw blocks from                                    + test_event_log, test_kvtrace

Most engines here are scripted; `ShadowRunner` notices any sequence that reads what is not its own.
"""

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import LLM, ConfigError, Engine, EngineConfig, SamplingParams, kv_cache_manager
from pagelens.engine import events as ev
from pagelens.engine.block_table import blocks_needed
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.kv_cache import KVCacheSpec, num_gpu_blocks
from pagelens.engine.runner import Launch
from pagelens.engine.sampler import SequenceResult

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE = 4


def greedy(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **others)


def shadowed(num_blocks: int, block_size: int = SIZE, **options: Any) -> Engine:
    return scripted_engine(num_blocks, block_size, ShadowRunner(num_blocks, block_size), **options)


def events(engine: Engine, kind: type) -> list[Any]:
    return [event for event in engine.log.read(0) or [] if isinstance(event, kind)]


def steps(engine: Engine) -> Iterator[None]:
    """Run to the end, with all invariants checked after every step."""
    while engine.has_work:
        engine.step()
        check_integrity(engine)
        yield
    check_map(engine, engine.log.snapshot())
    assert engine.manager.pool.num_free == engine.manager.pool.num_blocks


def run(engine: Engine) -> None:
    for _ in steps(engine):
        pass


def reasons(engine: Engine) -> Counter[str]:
    return Counter(event.reason for event in events(engine, ev.SequenceFinished))


def test_01_an_exhausted_pool_is_an_answer_and_the_engine_goes_on() -> None:
    engine = shadowed(3)
    for number in range(20):
        engine.add_request([number] * 5, greedy(50 if number == 7 else 4))
    run(engine)
    assert reasons(engine) == {"length": 19, "out_of_blocks": 1}
    again = engine.add_request([1], greedy(3))
    run(engine)
    assert again.sequences[0].finish_reason == "length"


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_02_no_block_too_many_and_none_too_few_around_a_boundary(size: int) -> None:
    """After every step a table has exactly the blocks of its computed tokens, and a pool holds all it has slots for."""
    for length in range(1, 2 * size + 2):
        engine = shadowed(4, size)
        request = engine.add_request(list(range(length)), greedy(4 * size + 1 - length))
        sequence = request.sequences[0]
        for _ in steps(engine):
            if sequence.finish_reason is None:
                assert len(engine.manager.tables["A.0"]) == blocks_needed(sequence.num_computed_tokens, size)
        assert (sequence.num_tokens, sequence.finish_reason) == (4 * size + 1, "length")


def test_03_a_block_that_was_reused_is_not_found_under_its_old_hash() -> None:
    engine = shadowed(6)
    prompts = [[number] * 9 for number in range(4)]
    for prompt in [*prompts, *prompts, *reversed(prompts)]:
        engine.add_request(prompt, greedy(3))
        run(engine)
    assert len(events(engine, ev.BlockEvicted)) > 10
    hits = [event.hit_blocks for event in events(engine, ev.PrefixLookup)]
    assert hits[:8] == [0] * 8, "four prompts of two blocks chase each other through six"
    assert max(hits[8:]) == 2, "and the newest are still there"


def test_04_identical_prompts_in_one_step_share_their_blocks() -> None:
    engine = shadowed(32)
    for _ in range(6):
        engine.add_request(list(range(9)), greedy(3))
    engine.step()
    assert len(engine.scheduler.running) == 6
    assert engine.manager.pool.num_blocks - engine.manager.pool.num_free == 2 + 6, "two full blocks once, six last ones"
    run(engine)


@pytest.mark.parametrize("length", [SIZE, 2 * SIZE, 2 * SIZE + 1])
def test_05_a_fully_cached_prompt_still_computes_a_token(length: int) -> None:
    engine = shadowed(16)
    for _ in range(3):
        engine.add_request(list(range(length)), greedy(2))
        run(engine)
    assert min(event.num_tokens for event in events(engine, ev.SequenceScheduled)) == 1
    hits = [event.hit_tokens for event in events(engine, ev.PrefixLookup)]
    assert hits == [0, *[(length - 1) // SIZE * SIZE] * 2]
    assert reasons(engine) == {"length": 3}


@pytest.mark.parametrize("caching", [False, True])
def test_06_computing_again_from_any_length_also_one_past_a_boundary(caching: bool) -> None:
    resumed_at = set()
    for length in range(1, 3 * SIZE):
        engine = shadowed(6, enable_prefix_caching=caching)
        engine.add_request([1] * 6, greedy(16))
        second = engine.add_request([2] * length, greedy(22 - length))
        for _ in steps(engine):
            if second.sequences[0].status == "preempted":
                resumed_at.add(second.sequences[0].num_tokens % SIZE)
        assert reasons(engine) == {"length": 2}
    assert resumed_at == set(range(SIZE))


def test_07_a_decode_goes_on_while_long_prompts_keep_arriving() -> None:
    engine = shadowed(400, max_num_batched_tokens=16)  # a prompt takes 13 steps
    engine.add_request([1, 2, 3], greedy(40))
    while engine.requests.get("A"):
        engine.add_request(list(range(200)), greedy(1))
        engine.step()
    came = [event.step for event in events(engine, ev.TokensGenerated) if "A.0" in event.sequences]
    gap = max(later - earlier for earlier, later in itertools.pairwise(came))
    print(f"largest gap between two tokens: {gap} steps")
    assert len(came) == 40 and gap <= 3
    run(engine)


def test_08_it_runs_without_a_gpu_without_triton_and_without_a_network() -> None:
    """As on a laptop with Windows: there is no Triton wheel, and nothing can be downloaded."""
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from pagelens.engine import LLM, SamplingParams\n"
        "llm = LLM()\n"
        "print(llm.engine.kernel['name'], len(llm.generate('A hacker is', SamplingParams(max_tokens=3))[0].outputs))\n"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["numba", "1"], done.stderr[-2000:]


def test_09_what_is_accepted_has_an_effect_and_the_reason_and_the_counts_are_true() -> None:
    llm = LLM(kernel="torch", num_gpu_blocks_override=64, block_size=8)
    prompt = "A hacker is a person who"
    plain = llm.generate(prompt, greedy(12, ignore_eos=True))[0]
    assert len(plain.prompt_token_ids) == len(llm.engine.tokenizer.encode(prompt))
    text, tokens = plain.outputs[0].text, plain.outputs[0].token_ids
    assert (len(tokens), plain.outputs[0].finish_reason) == (12, "length")

    def outputs(**asked: Any) -> list[Any]:
        params = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True} | asked
        return llm.generate(prompt, SamplingParams(**params))[0].outputs

    sampled = outputs()[0].token_ids
    assert sampled != tokens and outputs()[0].token_ids == sampled
    for asked in ({"temperature": 0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
        assert outputs(**asked)[0].token_ids == tokens, asked
    assert len({tuple(answer.token_ids) for answer in outputs(n=3)}) == 3
    for asked in ({"stop": text[5:9]}, {"stop_token_ids": (tokens[4],)}):
        assert outputs(temperature=0, **asked)[0].finish_reason == "stop", asked
    for asked in (
        {"repetition_penalty": 5.0},
        {"logit_bias": {tokens[0]: -100.0}},
        {"forbidden_token_ids": (tokens[0],)},
        {"allowed_token_ids": (tokens[1], tokens[2])},
        {"max_tokens": 3},
    ):
        assert outputs(temperature=0, **asked)[0].token_ids != tokens, asked
    assert outputs(temperature=0, logprobs=2)[0].logprobs is not None


def test_10_memory_taken_by_others_is_an_error_with_a_remedy_and_no_negative_pool(monkeypatch: Any) -> None:
    spec = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=16, dtype=torch.float32)
    block = 16 * spec.bytes_per_token()
    memory = {"free": 100, "total": 1000}  # in blocks
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory["free"] * block, memory["total"] * block))
    config = EngineConfig(gpu_memory_utilization=0.95)
    assert num_gpu_blocks(config, spec, torch.device("cuda")) == 50
    memory["free"] = 20
    with pytest.raises(ConfigError, match=r"may take -\d+ bytes .* less what is in use.*lower block_size"):
        num_gpu_blocks(config, spec, torch.device("cuda"))


class RecordingRunner(ShadowRunner):
    """Notes which blocks a launch reads and writes, and which of them are free by the time it is over."""

    engine: Engine
    overlaps = 0

    def execute(self, launch: Launch) -> list[SequenceResult]:
        before = {item.sequence.name: list(item.block_table) for item in launch.plan.scheduled}
        results = super().execute(launch)
        for item in launch.plan.scheduled:
            assert list(item.block_table) == before[item.sequence.name], "a table changed under the launch"
            assert all(self.engine.manager.pool.ref_count[block] for block in item.block_table)
        self.overlaps += 1
        return results


def test_11_nothing_is_freed_or_given_away_between_plan_and_commit() -> None:
    """Requests come, end and are aborted all the time, but a launch has its blocks to itself."""
    runner = RecordingRunner(10, SIZE)
    engine = runner.engine = scripted_engine(10, SIZE, runner)
    for number in range(12):
        engine.add_request([number] * 7, greedy(5 + number))
        plan = engine.plan()
        results = engine.launch(plan)
        engine.commit(plan, results)
        if number % 3 == 2:
            engine.abort(next(iter(engine.requests)))
        check_integrity(engine)
    run(engine)
    assert runner.overlaps > 20 and reasons(engine)["abort"] == 4


def test_12_nothing_is_reserved_for_tokens_that_do_not_exist_yet() -> None:
    """Ten requests that might take 500 tokens each start at once in a pool of 64; worst cases would admit none."""
    engine = shadowed(16, max_num_seqs=16)
    for number in range(10):
        engine.add_request([number] * 3, greedy(500))
    engine.step()
    assert len(engine.scheduler.running) == 10
    assert engine.manager.pool.num_blocks - engine.manager.pool.num_free == 10
    assert len(events(engine, ev.TokensGenerated)[0].sequences) == 10, "each has its first token"
    for name in list(engine.requests):
        engine.abort(name)


def test_13_preemption_does_not_become_a_storm() -> None:
    """A crowd that needs three times the pool: what is computed again stays a fraction, with any choice of victims.

    Admission only without a preemption in the same plan, a watermark and what is promised to prompts keep it low.
    """
    shares = {}
    for policy in ("DefaultPolicy", "FewestLostTokens", "MostBlocksFreed"):
        for host_blocks in (0, 60):
            engine = scripted_engine(
                48,
                SIZE,
                ShadowRunner(48, SIZE, 0, host_blocks),
                host_blocks,
                policy=f"pagelens.engine.policies:{policy}",
                max_num_seqs=32,
                max_num_batched_tokens=256,
                enable_prefix_caching=False,
            )
            for number in range(24):
                engine.add_request([number] * (8 + number), greedy(20))
            run(engine)
            lost = sum(event.lost_tokens for event in events(engine, ev.RequestPreempted))
            computed = sum(event.num_tokens for event in events(engine, ev.SequenceScheduled))
            assert events(engine, ev.RequestPreempted)
            shares[policy, host_blocks] = lost / computed
    print(
        "share of the computed tokens that was computed again:", {key: f"{share:.0%}" for key, share in shares.items()}
    )
    assert max(shares.values()) < 0.35
    assert all(share == 0 for (_, host_blocks), share in shares.items() if host_blocks)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_14_token_ids_that_are_equal_in_their_low_bits_share_nothing(bits: int) -> None:
    engine = shadowed(16)
    for token in (5, 5 + 2**bits, 5, 5 + 2**bits):
        engine.add_request([token] * 9, greedy(2))
        run(engine)
    assert [event.hit_tokens for event in events(engine, ev.PrefixLookup)] == [0, 0, 8, 8], "both are kept, apart"


def test_14_a_hash_collision_hands_out_no_foreign_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block has the same hash now. The tokens are compared, and the shadow runner reads them all."""
    monkeypatch.setattr(kv_cache_manager, "chain_hash", lambda parent, tokens: "same")
    engine = shadowed(24)
    for number in [1, 2, 1, 3, 2, 1]:
        engine.add_request([number] * 9, greedy(6))
        run(engine)
    assert [event.hit_blocks for event in events(engine, ev.PrefixLookup)] == [0, 0, 1, 0, 0, 1]


def test_15_without_the_prefix_cache_the_output_is_the_same(oracle: Any) -> None:
    llama = oracle("llama")
    prompts = [llama.prompt(length) for length in (20, 21, 30, 9, 20)]
    answers = []
    for caching in (True, False):
        options = {"kernel": "torch", "block_size": 8, "num_gpu_blocks_override": 40, "log_events": True}
        llm = LLM(str(llama.folder), enable_prefix_caching=caching, **options)
        rounds = [llm.generate(prompts, greedy(8), progress=False) for _ in range(2)]
        answers += [[result.outputs[0].token_ids for result in results] for results in rounds]
        assert bool(events(llm.engine, ev.BlockSealed)) == caching
        assert bool(events(llm.engine, ev.PrefixLookup)) == caching
    assert answers == [answers[0]] * 4


def test_16_every_script_that_prints_a_speed_prints_what_it_was_measured_on() -> None:
    """So that a figure can be had again: the machine, the versions, and whether something else was running."""
    for script in (Path(__file__).parents[2] / "benchmarks").glob("*.py"):
        source = script.read_text()
        if "perf_counter" in source and re.search(r"\n    python benchmarks/\w+\.py(?! PORT)", source):
            assert "print_machine()" in source, f"{script.name} measures time but does not say on what"


def test_17_the_life_of_a_block_can_be_read_from_the_events() -> None:
    """Allocated, sealed, shared, released, found again, evicted: each once, with its state, and for a reason."""
    engine = shadowed(5)
    for prompt in ([1] * 5, [1] * 5, [2] * 17):
        engine.add_request(prompt, greedy(2))
        run(engine)
    life = [
        (type(event).__name__, event.why)
        for event in engine.log.read(0) or []
        if getattr(event, "block", None) == events(engine, ev.BlockSealed)[0].block
    ]
    assert life[:7] == [
        ("BlockAllocated", "table_grows"),
        ("BlockSealed", "block_full"),
        ("BlockReleased", "sequence_finished"),
        ("BlockShared", "prefix_hit"),
        ("BlockReleased", "sequence_finished"),
        ("BlockEvicted", "least_recently_used"),
        ("BlockAllocated", "table_grows"),
    ]
    assert all(event.cause >= 0 for event in engine.log.read(0) or [] if type(event).__name__.startswith("Block"))
