"""Random requests for 100,000 steps: nothing leaks, nothing is mixed up, and everything is free in the end.

    make soak        or        python benchmarks/soak.py [--steps 100000] [--seed 0]

Four engines without a model take a quarter of the steps each: fcfs and priority, with and without a host pool and a
prefix cache, different block sizes. Users submit (n samples, beams, salts, priorities), abort, reset the cache, and now
and then a launch fails. A shadow of both pools carries out every plan: a slot holds a hash of all tokens up to
its position, and every sequence must find its own. Every few steps the invariants are checked, and the picture drawn
from the events is compared with the engine.
"""

import argparse
import random
import resource
import sys
import time
from collections import Counter

import numpy as np
from follow import empty_picture, follow
from machine import print_machine

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.beam_search import Candidate
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.request import Sequence, SequenceStatus
from pagelens.engine.runner import Launch, ScriptedRunner
from pagelens.engine.sampler import SequenceResult

CHECK_EVERY = 20
NUM_BLOCKS, HOST_BLOCKS, MAX_LEN = 48, 40, 160
ENGINES: list[tuple[dict[str, object], int]] = [  # options, host blocks
    ({"block_size": 8}, HOST_BLOCKS),
    ({"block_size": 4, "scheduling_policy": "priority", "policy": "pagelens.engine.policies:FewestLostTokens"}, 0),
    (
        {"block_size": 16, "scheduling_policy": "priority", "policy": "pagelens.engine.policies:LowestPriority"},
        HOST_BLOCKS,
    ),
    (
        {"block_size": 8, "enable_prefix_caching": False, "policy": "pagelens.engine.policies:MostBlocksFreed"},
        HOST_BLOCKS,
    ),
]
MUST_FIRE = {
    "BlockCopied",
    "BlockEvicted",
    "BlockShared",
    "BlockUnsealed",
    "BlocksSwappedIn",
    "BlocksSwappedOut",
    "HostBlocksFreed",
    "RequestAborted",
    "RequestPreempted",
    "SequenceForked",
    "SequenceResumed",
    "StepFailed",
}


class ShadowRunner(ScriptedRunner):
    """A script whose two pools hold, for each slot, a hash of the tokens up to its position (int64)."""

    def __init__(self, block_size: int, host_blocks: int) -> None:
        super().__init__(lambda sequence, sample_index: 1000 * sample_index + sequence.num_tokens % 7)
        self.kv = np.zeros((NUM_BLOCKS, block_size), dtype=np.int64)
        self.host = np.zeros((host_blocks, block_size), dtype=np.int64)
        self.fail_next = False
        self._hashes: dict[Sequence, list[int]] = {}

    def execute(self, launch: Launch) -> list[SequenceResult]:
        """Move, write, let every sequence find its tokens, then ask the script."""
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the device is gone")
        plan, size = launch.plan, self.kv.shape[1]
        for source, target, moves in (
            (self.kv, self.host, plan.swap_out),
            (self.host, self.kv, plan.swap_in),
            (self.kv, self.kv, plan.copies),
        ):
            if moves:
                sources, targets = np.array(moves).T
                target[targets] = source[sources]
        flat = self.kv.reshape(-1)
        for item in plan.scheduled:
            end = item.start + item.num_tokens
            flat[item.block_table.slots(item.start, item.num_tokens, size)] = self._prefixes(item.sequence)[
                item.start : end
            ]
        for item in plan.scheduled:
            end = item.start + item.num_tokens
            found = flat[item.block_table.slots(0, end, size)]
            if not np.array_equal(found, self._prefixes(item.sequence)[:end]):
                raise AssertionError(f"{item.sequence.name} does not find its own tokens")
        results = super().execute(launch)
        for item, result in zip(plan.scheduled, results, strict=True):
            search = item.sequence.request.search
            if item.num_samples and search is not None:
                result.samples = []
                result.candidates = _candidates(item.sequence, search.num_candidates)
        return results

    def forget_finished(self) -> int:
        """Drop the hashes of sequences that have ended; returns how many are left."""
        self._hashes = {s: h for s, h in self._hashes.items() if s.status is not SequenceStatus.FINISHED}
        return len(self._hashes)

    def _prefixes(self, sequence: Sequence) -> list[int]:
        hashes = self._hashes.setdefault(sequence, [])
        for token in sequence.token_ids[len(hashes) :]:
            hashes.append(hash((hashes[-1] if hashes else sequence.request.cache_salt, token)))
        return hashes


def _candidates(sequence: Sequence, count: int) -> list[Candidate]:
    generator = random.Random(hash(tuple(sequence.token_ids)))
    tokens = generator.sample(range(40), min(40, count))
    return [Candidate(token, -generator.random() - 0.1 * rank) for rank, token in enumerate(tokens)]


class Users:
    """Everything that people do to one engine, at random."""

    def __init__(self, engine: Engine, runner: ShadowRunner, seed: int) -> None:
        self.engine, self.runner, self.random = engine, runner, random.Random(seed)

    def act(self) -> None:
        """Before a step: perhaps submit, abort, reset, or pull the plug."""
        chance = self.random.random
        if len(self.engine.requests) < 24 and chance() < 0.5:
            self._submit()
        if self.engine.requests and chance() < 0.02:
            self.engine.abort(self.random.choice(sorted(self.engine.requests)))
        if chance() < 0.002:
            self.engine.reset_prefix_cache()
        self.runner.fail_next = chance() < 0.002

    def _submit(self) -> None:
        draw = self.random
        start = draw.choice(([1] * 24, [2] * 40, []))
        prompt = start + draw.choices(range(3), k=draw.randint(1, 60))
        width = draw.choice((1, 1, 1, 2, 3, 4))
        max_tokens = draw.randint(1, 60)
        if width > 1 and draw.random() < 0.4:
            params = SamplingParams(max_tokens=max_tokens, beam_width=width, stop_token_ids=(7,))
        else:
            params = SamplingParams(
                max_tokens=max_tokens, temperature=0, n=width, stop_token_ids=(5,) * (max_tokens % 2)
            )
        priority = draw.randint(0, 3) if self.engine.config.scheduling_policy == "priority" else 0
        salt = draw.choice(("", "", "red", "blue"))
        self.engine.add_request(prompt, params, priority=priority, cache_salt=salt)


def memory_mb() -> float:
    """Most memory that this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def soak(options: dict[str, object], host_blocks: int, steps: int, seed: int) -> Counter[str]:
    """Drive one engine for `steps` steps and to its end; counts of what happened."""
    config = EngineConfig(
        num_gpu_blocks_override=NUM_BLOCKS,
        max_model_len=MAX_LEN,
        max_num_seqs=12,
        max_num_batched_tokens=96,
        **options,  # type: ignore[arg-type]
    )
    runner = ShadowRunner(config.block_size, host_blocks)
    engine = Engine(config, runner=runner, scripted_host_blocks=host_blocks)
    users, picture = Users(engine, runner, seed), empty_picture(engine)
    started = time.perf_counter()
    while engine.num_steps < steps or engine.has_work:
        if engine.num_steps < steps:
            users.act()
        engine.step()
        follow(engine, picture)
        if engine.num_steps % CHECK_EVERY == 0:
            check_integrity(engine)
            check_map(engine, picture)
        if engine.num_steps % 5000 == 0:
            runner.forget_finished()
            rate = engine.num_steps / (time.perf_counter() - started)
            print(f"  {engine.num_steps:7,} steps, {rate:5.0f}/s, {picture.seq:,} events, peak {memory_mb():.0f} MB")
    follow(engine, picture)
    check_integrity(engine)
    check_map(engine, picture)
    manager, scheduler = engine.manager, engine.scheduler
    left_over = {
        "used blocks": NUM_BLOCKS - manager.pool.num_free,
        "used host blocks": host_blocks - manager.host_pool.num_free,
        "references": sum(manager.pool.ref_count) + sum(manager.host_pool.ref_count),
        "tables": len(manager.tables),
        "hash chains": len(manager._hashes),
        "sequences in a queue": len(scheduler.running) + len(scheduler.waiting) + len(scheduler.parked),
        "requests": len(engine.requests),
        "texts": len(engine.outputs._texts),
        "sealed blocks that are not cached": len(manager.cache.by_block) - len(manager.pool.cached),
        "shadow sequences": runner.forget_finished(),
    }
    wrong = {name: count for name, count in left_over.items() if count}
    if wrong:
        raise AssertionError(f"left over at the end: {wrong}")
    print(f"  in the end all {NUM_BLOCKS} + {host_blocks} blocks are free; zero: {', '.join(left_over)}")
    return Counter(picture.totals) + Counter({"steps": engine.num_steps})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print_machine()
    started, happened, peaks = time.perf_counter(), Counter[str](), []
    for number, (options, host_blocks) in enumerate(ENGINES):
        print(f"engine {number}: {options}, {host_blocks} host blocks")
        happened += soak(options, host_blocks, -(-args.steps // len(ENGINES)), args.seed + number)
        peaks.append(memory_mb())
    print("\n".join(f"{kind:20}{count:12,}" for kind, count in sorted(happened.items())))
    silent = sorted(MUST_FIRE - happened.keys())
    if silent:
        raise AssertionError(f"never happened: {', '.join(silent)}")
    print(f"peak memory after each engine: {', '.join(f'{peak:.0f}' for peak in peaks)} MB")
    print(f"soak passed: {happened['steps']:,} steps in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
