"""Figures of a run, worked out by hand, and what they say about fairness."""

from pathlib import Path

import pytest
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import Engine, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.kvtrace import Trace, TraceWriter
from pagelens.engine.memory_map import MemoryMap
from pagelens.engine.run_stats import RunStats


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, n=n)


def shadowed(num_blocks: int, block_size: int = 4, host_blocks: int = 0, **options) -> Engine:
    runner = ShadowRunner(num_blocks, block_size, host_blocks=host_blocks)
    return scripted_engine(num_blocks, block_size, runner, host_blocks, **options)


def stats_of(engine: Engine) -> RunStats:
    """Run the engine to its end and read all its events."""
    while engine.has_work:
        engine.step()
    picture = MemoryMap(num_blocks=engine.log.header.num_blocks, block_size=engine.log.header.block_size)
    stats = RunStats(engine.log.header)
    for event in engine.log.read(0) or []:
        picture.apply(event)
        stats.apply(event, picture)
    return stats


def test_hit_rate_counts_tokens() -> None:
    engine = shadowed(16)
    engine.add_request(list(range(10)), greedy(1))
    engine.step()
    engine.add_request([*range(8), 77], greedy(1))
    stats = stats_of(engine)
    assert (stats.hit_tokens, stats.looked_up_tokens, stats.hit_rate) == (8, 19, 8 / 19)
    assert stats.computed_tokens == 10 + 1 and stats.recomputed_tokens == 0


@pytest.mark.parametrize("caching", [False, True])
def test_tokens_recomputed_are_those_lost_less_what_the_cache_gave_back(caching: bool) -> None:
    """B loses its 8 prompt tokens and more; A's growth overwrites some of B's cached blocks before B is back."""
    engine = shadowed(6, enable_prefix_caching=caching)
    for number in range(2):
        engine.add_request([number] * 8, greedy(12))
    stats = stats_of(engine)
    resumed = [e for e in engine.log.read(0) or [] if isinstance(e, ev.SequenceResumed)]
    preempted = [e for e in engine.log.read(0) or [] if isinstance(e, ev.RequestPreempted)]
    assert stats.preemptions == {"B": len(preempted)} and len(preempted) == len(resumed)
    assert stats.lost_tokens == sum(e.lost_tokens for e in preempted) > 0
    assert stats.recomputed_tokens == stats.lost_tokens - sum(e.num_computed_tokens for e in resumed)
    assert (stats.recomputed_tokens < stats.lost_tokens) == caching
    assert stats.computed_tokens == 2 * 19 + stats.recomputed_tokens


def test_swapping_moves_blocks_and_recomputes_nothing() -> None:
    engine = shadowed(6, host_blocks=8)
    engine.log.header.model["bytes_per_token"] = 100
    for number in range(2):
        engine.add_request([number] * 8, greedy(12))
    stats = stats_of(engine)
    assert stats.preemptions == {"B": 1} and stats.recomputed_tokens == stats.lost_tokens == 0
    assert stats.blocks_out == stats.blocks_in == 3
    assert stats.swapped_bytes == 6 * 4 * 100


def test_memory_saved_by_sharing_is_blocks_saved_over_blocks_without_sharing() -> None:
    """Prompt of 6, four samples of 3 tokens: first one table of 2, then twice four that share their first block."""
    engine = shadowed(16)
    engine.add_request([1, 2, 3, 4, 5, 6], greedy(3, n=4))
    stats = stats_of(engine)
    saved = stats.sharing["A"]
    assert saved.peak == 3 / 8 and saved.mean == (0 + 3 + 3) / (2 + 8 + 8)
    assert saved.entries == 0 and not saved.blocks, "all was given back"
    assert stats.blocks_copied == 3


def test_a_prefix_shared_between_requests_counts_in_the_whole() -> None:
    engine = shadowed(16)
    for last in (8, 9):
        engine.add_request([*range(8), last], greedy(2))
    stats = stats_of(engine)
    assert stats.sharing["A"].peak == stats.sharing["B"].peak == 0
    assert stats.shared_by_all.peak == stats.shared_by_all.mean == 2 / 6


def test_first_tokens_gaps_and_waits() -> None:
    engine = shadowed(32, max_num_batched_tokens=8)
    engine.add_request(list(range(20)), greedy(3))
    engine.add_request(list(range(100, 104)), greedy(2))
    stats = stats_of(engine)
    assert stats.first_token_steps == {"A": 2, "B": 2}, "two chunks of 8, and 4 tokens with B's prompt"
    assert all(ns > 0 for ns in stats.first_token_ns.values())
    assert stats.gaps == {1: 3} and stats.longest_gap == {"A.0": 1, "B.0": 1}
    assert stats.waits == {"waits_for_token_budget": 2}


def test_a_recording_gives_the_same_figures(tmp_path: Path) -> None:
    engine = shadowed(6)
    with TraceWriter(tmp_path / "run.kvtrace", engine.log) as writer:
        for number in range(2):
            engine.add_request([number] * 8, greedy(12, n=2))
        live = stats_of(engine)
        writer.drain()
    trace = Trace(tmp_path / "run.kvtrace")
    read = RunStats.of(trace.header, trace.pictures())
    assert read == live
    named = dict(read.rows())
    assert named["preemptions"].startswith(f"{live.preemptions.total()}, most")


def test_reading_may_begin_in_the_middle(tmp_path: Path) -> None:
    engine = shadowed(16)
    engine.log._capacity = 64
    for number in range(3):
        engine.add_request([number] * 8, greedy(12, n=2))
    for _ in range(10):
        engine.step()
    with TraceWriter(tmp_path / "run.kvtrace", engine.log) as writer:
        writer.drain()
        while engine.has_work:
            engine.step()
            writer.drain()
    trace = Trace(tmp_path / "run.kvtrace")
    assert trace.header.base is not None
    stats = RunStats.of(trace.header, trace.pictures())
    assert stats.shared_by_all.entries == 0 and stats.recomputed_tokens <= stats.lost_tokens


def test_a_decode_keeps_its_pace_while_long_prompts_keep_arriving() -> None:
    engine = shadowed(24, max_num_batched_tokens=16)
    engine.add_request([1, 2, 3], greedy(60))
    engine.step()
    for number in range(40):  # 40 tokens each and 16 a step: the queue only grows
        engine.add_request([number + 10] * 40, greedy(2))
        engine.step()
    stats = stats_of(engine)
    assert stats.longest_gap["A.0"] <= 3
    print(f"longest gap of the decode: {stats.longest_gap['A.0']} steps; queue: {stats.waits}")


def test_twenty_requests_on_three_blocks_all_end_in_turn() -> None:
    engine = shadowed(3)
    for number in range(20):
        engine.add_request([number] * 6, greedy(5))
    stats = stats_of(engine)
    ended = [e for e in engine.log.read(0) or [] if isinstance(e, ev.SequenceFinished)]
    assert [e.reason for e in ended] == ["length"] * 20
    assert len(stats.first_token_steps) == 20
    assert engine.manager.pool.num_free == 3
