"""How the time of a decode step grows: with sequences, with context, with the size of the pool. Under 3 minutes.

    python benchmarks/cost_growth.py [--plot docs/images/cost_growth.svg]

Expected: linear in sequences; with the context attention grows linearly and the scheduler not at all; nothing grows
with the pool. Three things are timed for each:
  scheduler   plan and commit, with a script for a model; in the last part the pool is full of cached blocks, so that
              each new block must evict one
  attention   Numba's kernel alone: one layer of a 135 M Llama (9 heads, 3 KV heads of 64), float32
  step        the whole step of the engine with a small random Llama (2 layers, 128 wide, 4 heads, 2 KV heads of 64)
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from machine import print_machine
from numba_kernel import SCALE, batch
from peers import write_model
from svg_plot import line_chart, one_below_the_other, write_plot

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.runner import ScriptedRunner
from pagelens.kernels.numba_paged_attention import paged_attention

Point = tuple[float, float]
SEQUENCES, CONTEXTS, POOLS = (1, 4, 16, 64, 256), (64, 256, 1024, 4096, 8192), (1_000, 10_000, 100_000)
CONTEXT, FEW, SOME = 256, 4, 16
"""What is held: the context while sequences grow, sequences while the context grows, and while the pool does."""

STEPS, BLOCK_SIZE = 32, 16
"""Two blocks for every sequence in the time of one measurement, wherever it begins."""

MODEL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}


def engine(model: str, num_blocks: int, scripted: bool) -> Engine:
    """With room for 256 sequences; it reads no prefix from the cache, since every prompt is another."""
    config = EngineConfig(
        model=model,
        num_gpu_blocks_override=num_blocks,
        max_model_len=MODEL["max_position_embeddings"],
        max_num_seqs=max(SEQUENCES),
        max_num_batched_tokens=2048,
        block_size=BLOCK_SIZE,
        watermark=0,
    )
    runner = ScriptedRunner(lambda sequence, sample_index: sequence.num_tokens % 512) if scripted else None
    return Engine(config, log_events=False, runner=runner)


def fill_with_cached_blocks(served: Engine) -> None:
    """Requests come and go until no block is blank."""
    blocks_each = 32
    for number in range(served.manager.pool.num_blocks // blocks_each + 2):
        prompt = random.Random(number).choices(range(512), k=blocks_each * BLOCK_SIZE)
        served.add_request(prompt, SamplingParams(max_tokens=1))
        served.step()
    while served.has_work:
        served.step()


def decode_seconds(served: Engine, num_seqs: int, context: int, rounds: int, scripted: bool) -> float:
    """Of one step: the median of `rounds` times STEPS steps, once every prompt is in the cache."""
    for number in range(num_seqs):
        prompt = random.Random(-number - 1).choices(range(512), k=context)
        params = SamplingParams(max_tokens=(rounds + 2) * STEPS + context, temperature=0, ignore_eos=True)
        served.add_request(prompt, params)
    requests = list(served.requests.values())
    while any(request.sequences[0].num_tokens == context for request in requests):
        served.step()
    times = [_steps_seconds(served, scripted) / STEPS for _ in range(rounds)]
    for request in requests:
        served.abort(request.request_id)
    return median(times)


def _steps_seconds(served: Engine, scripted: bool) -> float:
    """Of STEPS steps; without what the script takes, if it is one."""
    spent = 0.0
    for _ in range(STEPS):
        started = time.perf_counter()
        plan = served.plan()
        planned = time.perf_counter()
        results = served.launch(plan)
        launched = time.perf_counter()
        served.commit(plan, results)
        spent += time.perf_counter() - started - (launched - planned if scripted else 0.0)
    return spent


def kernel_seconds(num_seqs: int, context: int, pool_blocks: int = 0) -> float:
    """Of one launch, the median of 15; with `pool_blocks` the tables point all over a pool of that size."""
    query, layer, tables, starts, contexts = batch(num_seqs, context, 1, torch.float32)
    if pool_blocks:
        layer = torch.zeros(pool_blocks, *layer.shape[1:])
        tables = torch.randperm(pool_blocks)[: tables.numel()].int().view(tables.shape)
    paged_attention(query, layer, tables, starts, contexts, scale=SCALE)
    times = []
    for _ in range(15):
        started = time.perf_counter()
        paged_attention(query, layer, tables, starts, contexts, scale=SCALE)
        times.append(time.perf_counter() - started)
    return median(times)


def exponent(points: Sequence[Point]) -> float:
    """p of time = c x^p between the two largest x: 1 is linear, 0 is flat."""
    (x0, y0), (x1, y1) = points[-2:]
    return math.log(y1 / y0) / math.log(x1 / x0)


def line(points: Sequence[Point]) -> tuple[float, float, float]:
    """(fixed, each, worst): the line fixed + each * x with the least relative errors, and the largest of them."""
    x, y = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    fixed, each = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(y)), rcond=None)[0]
    return float(fixed), float(each), float(abs((fixed + each * x) / y - 1).max())


def print_growth(title: str, lines: dict[str, list[Point]], flat: bool) -> None:
    """A table in milliseconds, and what kind of growth it is."""
    print(f"\n{title}\n  {'':12}" + "".join(f"{x:>10,.0f}" for x, _ in next(iter(lines.values()))))
    for name, points in lines.items():
        print(f"  {name:12}" + "".join(f"{ms:10.3f}" for _, ms in points), end=" ms   ")
        if flat:
            print(f"largest / smallest pool: {points[-1][1] / points[0][1]:.2f}")
            continue
        fixed, each, worst = line(points)
        print(f"exponent at the end {exponent(points):.2f}; ", end="")
        print(f"{fixed:.3f} ms + {each * 1e3:.3f} µs each, off by {worst:.0%}")


def measure(model: str, rounds: int = 3) -> Iterator[tuple[str, dict[str, list[Point]]]]:
    """What grows, and by what is timed: milliseconds over size."""

    def decode(scripted: bool, num_seqs: int, context: int, num_blocks: int = 0) -> float:
        needed = num_seqs * (2 * context + (rounds + 2) * STEPS) // BLOCK_SIZE + num_seqs
        served = engine(model, num_blocks or needed, scripted)
        if num_blocks and scripted:
            fill_with_cached_blocks(served)
        return decode_seconds(served, num_seqs, context, rounds, scripted)

    def over(sizes: Sequence[int], seconds: Callable[[int], float]) -> list[Point]:
        return [(size, seconds(size) * 1e3) for size in sizes]

    yield (
        "sequences",
        {
            "scheduler": over(SEQUENCES, lambda n: decode(True, n, CONTEXT)),
            "attention": over(SEQUENCES, lambda n: kernel_seconds(n, CONTEXT)),
            "step": over(SEQUENCES, lambda n: decode(False, n, CONTEXT)),
        },
    )
    yield (
        "context",
        {
            "scheduler": over(CONTEXTS, lambda n: decode(True, FEW, n)),
            "attention": over(CONTEXTS, lambda n: kernel_seconds(FEW, n)),
            "step": over(CONTEXTS, lambda n: decode(False, FEW, n)),
        },
    )
    yield (
        "pool",
        {
            "scheduler": over(POOLS, lambda n: decode(True, SOME, CONTEXT, n)),
            "attention": over(POOLS, lambda n: kernel_seconds(SOME, CONTEXT, n)),
            "step": over(POOLS, lambda n: decode(False, SOME, CONTEXT, n)),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="write the chart to this file")
    args = parser.parse_args()
    print_machine()
    titles = {
        "sequences": f"sequences, {CONTEXT} tokens each",
        "context": f"tokens of context, {FEW} sequences",
        "pool": f"blocks in the pool, {SOME} sequences of {CONTEXT} tokens",
    }
    charts = []
    with tempfile.TemporaryDirectory() as folder:
        for grows, lines in measure(write_model(Path(folder), MODEL, torch.float32)):
            print_growth(f"decode step by {titles[grows]}", lines, flat=grows == "pool")
            charts.append(line_chart("Time of a decode step", titles[grows], "ms", lines))
    if args.plot:
        write_plot(args.plot, one_below_the_other(charts))


if __name__ == "__main__":
    main()
