"""What a preemption costs: swapping blocks to the host and back, or computing their tokens again.

    python benchmarks/swap_or_recompute.py [--tokens 256] [--plot swap.svg]

Two parts:
  block sizes   the embedded model in fp32 with the torch kernels: a sequence's scattered blocks moved out and in,
                against one forward pass over its tokens, for blocks of 1 to 256 tokens. Median of the repetitions,
                taken in turn. The paper (section 7.3) has the two equal at blocks of 16 to 64, swapping poor at small
                blocks, and recomputing never above 1.2 times swapping.
  policies      a script for a model and bursts of requests: tokens computed again or blocks moved, by victim policy.

Without a GPU both pools lie in the same memory, so that a move costs a copy in it and no trip over PCIe.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from follow import empty_picture, follow
from machine import print_machine
from svg_plot import line_chart, write_plot

from pagelens.engine import LLM, Engine, EngineConfig, SamplingParams
from pagelens.engine.block_table import blocks_needed
from pagelens.engine.run_stats import RunStats
from pagelens.engine.runner import ModelRunner, ScriptedRunner

BLOCK_SIZES = [1 << exponent for exponent in range(9)]
POLICIES = {
    "newest": "pagelens.engine.policies:DefaultPolicy",
    "lowest priority": "pagelens.engine.policies:LowestPriority",
    "fewest lost tokens": "pagelens.engine.policies:FewestLostTokens",
    "most blocks freed": "pagelens.engine.policies:MostBlocksFreed",
}
NUM_LOADS = 5


class Moves:
    """The blocks of one sequence of the embedded model, at random places of both pools."""

    def __init__(self, block_size: int, num_tokens: int) -> None:
        needed = blocks_needed(num_tokens, block_size)
        self.llm = LLM(
            kernel="torch",
            block_size=block_size,
            num_gpu_blocks_override=4 * needed + 2,
            swap_space=0.01,
            max_num_batched_tokens=max(512, num_tokens),
            enable_prefix_caching=False,
            log_events=False,
        )
        runner = self.llm.engine.runner
        assert isinstance(runner, ModelRunner)
        self.runner = runner
        kv, host = self.runner.cache.kv, self.runner.cache.host
        kv.normal_()
        host.normal_()  # so that no page is touched for the first time while the clock runs
        generator = torch.Generator().manual_seed(0)
        self.device = torch.randperm(len(kv), generator=generator)[:needed]
        self.host = torch.randperm(min(len(host), 4 * needed), generator=generator)[:needed]
        self.num_blocks, self.num_bytes = needed, kv[0].nbytes * needed
        self.prompt = [1 + number % 1000 for number in range(num_tokens)]

    def swap_out(self) -> None:
        """Device to host."""
        self._move(self.runner.cache.kv, self.runner.cache.host, self.device, self.host)

    def swap_in(self) -> None:
        """Host to device."""
        self._move(self.runner.cache.host, self.runner.cache.kv, self.host, self.device)

    def _move(self, *move: torch.Tensor) -> None:
        self.runner.loaded.attention.kernels.move_blocks(*move)

    def recompute_seconds(self) -> float:
        """One launch over all tokens."""
        engine = self.llm.engine
        engine.add_request(self.prompt, SamplingParams(max_tokens=1, temperature=0))
        plan = engine.plan()
        started = time.perf_counter()
        results = engine.launch(plan)
        seconds = time.perf_counter() - started
        engine.commit(plan, results)
        assert plan.num_tokens == len(self.prompt)
        return seconds


def timed(action: Callable[[], None]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def by_block_size(num_tokens: int, repetitions: int) -> dict[str, list[tuple[float, float]]]:
    """(block size, milliseconds) of each way; prints the table."""
    everything = {size: Moves(size, num_tokens) for size in BLOCK_SIZES}
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(repetitions + 1):
        for size, moves in everything.items():
            seconds.setdefault(("swap out", size), []).append(timed(moves.swap_out))
            seconds.setdefault(("swap in", size), []).append(timed(moves.swap_in))
            seconds.setdefault(("recompute", size), []).append(moves.recompute_seconds())
    ms = {key: 1e3 * statistics.median(values[1:]) for key, values in seconds.items()}
    print("block  blocks      KiB   swap out    swap in   recompute   recompute / swap out and in")
    for size, moves in everything.items():
        out, back, again = (ms[way, size] for way in ("swap out", "swap in", "recompute"))
        print(
            f"{size:5}{moves.num_blocks:8}{moves.num_bytes / 1024:9.0f}{out:8.3f} ms{back:8.3f} ms{again:9.2f} ms",
            end="",
        )
        print(f"{again / (out + back):12.1f}")
    lines = {"recompute": [(float(size), ms["recompute", size]) for size in BLOCK_SIZES]}
    lines["swap out and in"] = [(float(size), ms["swap out", size] + ms["swap in", size]) for size in BLOCK_SIZES]
    return lines


def bursty_run(policy: str, host_blocks: int, bytes_per_token: int, seed: int = 0) -> tuple[RunStats, int]:
    """Ten bursts of 12 requests, 30 steps apart, on a pool for about six; returns the figures and the steps."""
    config = EngineConfig(
        num_gpu_blocks_override=100,
        max_model_len=512,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        scheduling_policy="priority",
        policy=policy,
    )
    runner = ScriptedRunner(lambda sequence, sample_index: sequence.num_tokens)
    engine = Engine(config, runner=runner, scripted_host_blocks=host_blocks)
    engine.log.header.model["bytes_per_token"] = bytes_per_token
    picture = empty_picture(engine)
    stats, generator = RunStats(engine.log.header), random.Random(seed)
    while engine.num_steps < 300 or engine.has_work:
        if engine.num_steps < 300 and engine.num_steps % 30 == 0:
            for _ in range(12):
                prompt = generator.choices(range(1000), k=generator.randint(16, 200))
                params = SamplingParams(max_tokens=generator.randint(16, 200), temperature=0)
                engine.add_request(prompt, params, priority=generator.randint(0, 3))
        engine.step()
        follow(engine, picture, stats)
    return stats, engine.num_steps


def by_policy(bytes_per_token: int) -> None:
    """Print what each victim policy costs, with and without a host pool."""
    for host_blocks in (0, 400):
        mode = "swap" if host_blocks else "recompute"
        print(f"{mode:22}preempted   most   lost    again   of all computed   moved MB   steps")
        for name, policy in POLICIES.items():
            runs = [bursty_run(policy, host_blocks, bytes_per_token, seed) for seed in range(NUM_LOADS)]
            most = max(max(stats.preemptions.values(), default=0) for stats, _ in runs)
            preempted = sum(stats.preemptions.total() for stats, _ in runs)
            lost, again, computed, moved = (
                sum(getattr(stats, name) for stats, _ in runs)
                for name in ("lost_tokens", "recomputed_tokens", "computed_tokens", "swapped_bytes")
            )
            print(f"  {name:20}{preempted:9}{most:7}{lost:7}{again:9}{again / computed:18.1%}", end="")
            print(f"{moved / 1e6:11.1f}{sum(steps for _, steps in runs):8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--plot", type=Path, help="write the times to this SVG")
    args = parser.parse_args()
    print_machine()
    print(f"\nblock sizes: a sequence of {args.tokens} tokens, embedded model, fp32, torch kernels")
    lines = by_block_size(args.tokens, args.repetitions)
    print("\npolicies: 120 requests of 16-200 + 16-200 tokens in ten bursts, of priorities 0 to 3; 100 blocks of 16")
    print(f"sums over {NUM_LOADS} such loads; most: preemptions of one request")
    print("lost: tokens thrown away; again: those computed once more, the rest came from the prefix cache")
    engine = LLM(kernel="torch", num_gpu_blocks_override=8).engine
    by_policy(int(engine.log.header.model["bytes_per_token"]))
    if args.plot:
        title = f"Cost of preempting {args.tokens} tokens"
        write_plot(args.plot, line_chart(title, "block size (tokens)", "milliseconds", lines))


if __name__ == "__main__":
    main()
