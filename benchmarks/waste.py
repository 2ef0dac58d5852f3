"""Where the slots of a KV memory go: paged against contiguous, on the same requests and the same memory.

    python benchmarks/waste.py [--trace FILE] [--requests 4000] [--plot waste.svg]

No model and no GPU. Three parts:
  split      all requests arrive at once; how the memory is divided while the first in line waits for it (the paper's
             figure 2), averaged over steps; and what the engine holds without need, over the whole run
  scale      the same with all lengths scaled down: where do partly filled last blocks reach 4 %?
  rate       Poisson arrivals on a clock that a cost model drives: requests per second at equal p90 latency
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lengths import BUILT_IN, Lengths, built_in_lengths, model_length, read_lengths, scaled
from machine import print_machine
from serving import MACHINES, Machine, PagedServer, Server, keeps_pace, serve_all, sustained_rate
from svg_plot import line_chart, stacked_bars, write_plot

from pagelens.engine.contiguous import ContiguousServer, Reservation, maximum, power_of_two, true_length
from pagelens.engine.static_batch import static_batches
from pagelens.engine.waste import SlotSplit, sum_of

PARTS = ("tokens", "reservation", "unfilled", "external", "free")
PAPER = {  # figure 2 of the paper; its "external and other" is our external and free together
    "maximum": (0.204, 0.133, 0.573, 0.089),
    "power of two": (0.268, 0.179, 0.136, 0.416),
    "true length": (0.382, 0.252, 0, 0.366),
    "paged": (0.963, 0, 0, 0),
}
BUDGET = 8192
"""Tokens a step in the first two parts; 512 in the third, where a step takes time."""
LATENCY_LIMIT = 0.2
"""Seconds per output token, p90: about reading speed."""


def reservations(longest: int) -> dict[str, Reservation]:
    """The three contiguous systems by name."""
    return {"maximum": maximum(longest), "power of two": power_of_two(longest), "true length": true_length()}


def paged_run(lengths: list[Lengths], num_slots: int, longest: int, block_size: int, seqs: int) -> PagedServer:
    """Serve all on the engine, measured."""
    server = PagedServer(num_slots, block_size, longest, BUDGET, seqs, measure=True)
    serve_all(server, lengths)
    return server


def splits(lengths: list[Lengths], num_slots: int, longest: int, block_size: int) -> dict[str, SlotSplit]:
    """Slots by system, summed over the steps in which the first in line waited for memory."""
    found: dict[str, SlotSplit] = {}
    for name, reservation in reservations(longest).items():
        server = ContiguousServer(num_slots, reservation, BUDGET, 4096)
        serve_all(server, lengths)
        found[name] = sum_of(server.steps, while_waiting=True)
    paged = paged_run(lengths, num_slots, longest, block_size, 4096)
    steps = paged.meter.steps()
    found["paged"] = sum_of(steps, while_waiting=True)
    whole = sum_of(steps)
    print(f"paged     {len(steps)} steps, {max(s.split.allocated for s in steps):,} slots at most")
    print(f"          empty slots of a sequence: at most {paged.meter.most_unfilled} of {block_size} - 1 allowed")
    print(f"          allocated slots that hold no token, whole run: {whole.wasted_share:.2%} (budget 4 %)")
    print(f"          {paged.num_preemptions} preemptions")
    return found


def print_splits(found: dict[str, SlotSplit]) -> None:
    """Ours beside the paper's, in percent."""
    titles = ("tokens", "reserv.", "unfilled", "external", "free")
    print(" " * 14 + "".join(f"{title:>9}" for title in titles) + "   paper: tokens  reserv. internal ext.+other")
    for name, split in found.items():
        own, paper = split.shares(), PAPER[name]
        print(f"{name:14}" + "".join(f"{100 * own[part]:9.1f}" for part in PARTS), end="       ")
        print("".join(f"{100 * share:9.1f}" if share else f"{'-':>9}" for share in paper))


def waste_by_scale(lengths: list[Lengths], num_slots: int, longest: int, block_size: int) -> list[tuple[float, float]]:
    """(scale, percent of the allocated slots without a token), 512 sequences at a time."""
    measured = []
    for scale in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32):
        server = paged_run(scaled(lengths, scale), num_slots, longest, block_size, 512)
        measured.append((scale, 100 * sum_of(server.meter.steps()).wasted_share))
    return measured


def crossing(measured: list[tuple[float, float]], limit: float) -> float | None:
    """The scale at which the waste reaches `limit`, on a straight line between the logarithms of its neighbours."""
    for (scale, waste), (smaller, more) in itertools.pairwise(measured):
        if waste < limit <= more:
            part = (limit / waste - 1) / (more / waste - 1)
            return float(scale * (smaller / scale) ** part)
    return None


def rates(lengths: list[Lengths], machine: Machine, longest: int, block_size: int, seconds: float) -> dict[str, float]:
    """Requests per second that each system sustains within the latency limit."""
    slots = machine.num_slots // block_size * block_size
    systems: dict[str, Callable[[], Server]] = {
        name: partial(ContiguousServer, slots, reservation, 512, 256)
        for name, reservation in reservations(longest).items()
    }
    systems["paged"] = partial(PagedServer, slots, block_size, longest, 512, 256)

    def sustained(make: Callable[[], Server]) -> float:
        return sustained_rate(lambda rate: keeps_pace(make(), machine, lengths, rate, seconds, LATENCY_LIMIT))

    return {name: sustained(make) for name, make in systems.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="CSV with ContextTokens and GeneratedTokens")
    parser.add_argument("--requests", type=int, default=4000, help="how many of its requests (0: all)")
    parser.add_argument("--slots", type=int, default=1 << 20, help="memory of the split, in tokens")
    parser.add_argument("--minutes", type=float, default=10, help="of arrivals at each rate")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--plot", type=Path, help="write the split to this SVG, the scale beside it")
    args = parser.parse_args()
    print_machine()
    every = read_lengths(args.trace) if args.trace else built_in_lengths(args.requests or 4000)
    longest, lengths = model_length(every), every[: args.requests or None]
    mean = [sum(column) / len(lengths) for column in zip(*lengths, strict=True)]
    print(f"lengths   {args.trace.name if args.trace else BUILT_IN}")
    print(f"          {len(lengths)} requests, mean {mean[0]:.0f} + {mean[1]:.0f} tokens, unscaled")

    print(
        f"\nsplit     {args.slots:,} slots, requests of up to {longest:,} tokens, {BUDGET:,} tokens a step, in percent"
    )
    found = splits(lengths, args.slots, longest, args.block_size)
    print_splits(found)
    rows = args.slots // longest
    batch = static_batches(lengths, rows)
    print(f"static batches of {rows}: {batch.idle_share:.1%} of the row-steps idle, ", end="")
    print(f"{batch.padding_share:.1%} of the prompt slots padding")

    print(f"\nscale     of all lengths; percent of the allocated slots without a token, blocks of {args.block_size}")
    measured = waste_by_scale(lengths, args.slots, longest, args.block_size)
    print("          " + "   ".join(f"{scale:g}: {waste:.2f} %" for scale, waste in measured))
    at = crossing(measured, 4.0)
    if at is not None:
        print(
            f"          4 % is reached at lengths times {at:.3f}: mean {mean[0] * at:.0f} + {mean[1] * at:.0f} tokens"
        )

    print(
        f"\nrate      at p90 {LATENCY_LIMIT} s per output token; Poisson, {args.minutes:g} minutes, 512 tokens a step"
    )
    mean_tokens = sum(map(sum, every)) / len(every)
    for machine in MACHINES:
        sustained = rates(every, machine, longest, args.block_size, 60 * args.minutes)
        most = machine.flops / (2 * machine.parameters * mean_tokens)
        print(f"          {machine.name}: {machine.num_slots:,} slots; arithmetic allows {most:.2f} requests/s")
        for name, rate in sustained.items():
            print(
                f"            {name:13}{rate:6.2f} requests/s   paged serves {sustained['paged'] / rate:.2f} times that"
            )
    if args.plot:
        bars: dict[str, Sequence[float]] = {}
        for name, split in found.items():
            bars |= {name: [split.shares()[part] for part in PARTS], f"{name} (paper)": PAPER[name]}
        write_plot(args.plot, stacked_bars("Slots of the KV memory while requests wait", bars, PARTS))
        limit = [(measured[-1][0], 4.0), (measured[0][0], 4.0)]
        chart = line_chart(
            "Slots without a token", "scale of all lengths", "% of allocated", {"paged": measured, "4 %": limit}
        )
        write_plot(args.plot.with_stem(args.plot.stem + "_scale"), chart)


if __name__ == "__main__":
    main()
