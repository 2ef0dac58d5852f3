"""The ladder: five kernels for one job, each with what the one before was missing. The last is the engine's own.

python tutorials/kernels/ladder.py

runs every step under Triton's interpreter (or on the GPU that is here), compares it with the oracle, and prints what it
moves and multiplies for three batches of a real model.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton

from batches import random_call, token_by_token
from door import small_tiles
from roofline import H100, Shape, Work, floor

from pagelens.kernels import paged_attention as engine_kernel
from pagelens.kernels import reference
from pagelens.kernels.launch import LaunchConfig, choose_launch
from pagelens.kernels.walk import AttentionCall

one_head = importlib.import_module("01_one_head")
grouped_heads = importlib.import_module("02_grouped_heads")
any_query_length = importlib.import_module("03_any_query_length")
split_context = importlib.import_module("04_split_context")


@dataclass(frozen=True)
class Step:
    """One kernel of the ladder.

    Attributes:
        title: what it is called on the pages.
        source: the file, below the repository.
        attend: run it; without `config` in the call it takes its own tiles.
        work: count what it does for a batch, with the tiles it takes on an H100.
        decode_only: a sequence has one query token. Longer ones are served token by token.
    """

    title: str
    source: str
    attend: Callable[[AttentionCall], Tensor]
    work: Callable[[Shape], Work]
    decode_only: bool = False


def _engine_attend(call: AttentionCall) -> Tensor:
    return engine_kernel.paged_attention(**{field.name: getattr(call, field.name) for field in fields(call)})


def engine_work(shape: Shape, config: LaunchConfig) -> Work:
    """The engine's kernel moves what step 3 does, and with splits what step 4 does."""
    step = split_context if config.num_splits > 1 else any_query_length
    work: Work = step.work(shape, config)
    return work


def engine_tiles(shape: Shape, capability: int = 90) -> LaunchConfig:
    """What the engine's one function of tiles, splits, warps and stages says for a batch on a GPU."""
    return choose_launch(
        num_tokens=sum(shape.query_lens),
        num_seqs=len(shape.seq_lens),
        max_query_len=max(shape.query_lens),
        max_context=max(shape.seq_lens),
        group=shape.group,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        element_size=shape.element_size,
        interpreted=False,
        capability=capability,
    )


STEPS = {
    "one_head": Step(
        "1. One query, one head",
        "tutorials/kernels/01_one_head.py",
        one_head.attend,
        one_head.work,
        decode_only=True,
    ),
    "grouped_heads": Step(
        "2. Heads of a group as rows",
        "tutorials/kernels/02_grouped_heads.py",
        grouped_heads.attend,
        lambda shape: grouped_heads.work(shape, small_tiles(shape.group)),
        decode_only=True,
    ),
    "any_query_length": Step(
        "3. Prefill and decode",
        "tutorials/kernels/03_any_query_length.py",
        any_query_length.attend,
        lambda shape: any_query_length.work(shape, small_tiles(shape.group)),
    ),
    "split_context": Step(
        "4. Split contexts",
        "tutorials/kernels/04_split_context.py",
        split_context.attend,
        lambda shape: split_context.work(shape, small_tiles(shape.group, num_splits=16)),
    ),
    "engine": Step(
        "5. The engine's kernel",
        "kernels/paged_attention.py",
        _engine_attend,
        lambda shape: engine_work(shape, engine_tiles(shape)),
    ),
}

BATCHES = {
    "decode, 64 sequences, 2,048 tokens each": Shape((1,) * 64, (2048,) * 64),
    "decode, 1 sequence, 32,768 tokens": Shape((1,), (32768,)),
    "4 whole prompts of 2,048 tokens": Shape((2048,) * 4, (2048,) * 4),
}
"""In the shape of Llama 3 8B: 32 heads, 8 KV heads of 128, bfloat16. One layer."""


def work_of(step: Step, shape: Shape) -> Work:
    """What a step does for a batch, token by token if it must."""
    return step.work(shape.token_by_token() if step.decode_only else shape)


COLUMNS = ("", "programs", "MB moved", "of the least", "GFLOP", "FLOP/byte", "waits for", f"least time, {H100.name}")
LINE = "{:<28}{:>10}{:>12}{:>14}{:>11}{:>11}  {:<12}{:>20}"


def table_rows(shape: Shape) -> list[tuple[str, ...]]:
    """A line for each step, as COLUMNS says, and the floor at the end."""
    least = floor(shape, H100)
    lines = [(step.title, work_of(step, shape)) for step in STEPS.values()]
    return [_row(title, work, least) for title, work in lines] + [_row("no kernel does with less", least, least)]


def _row(title: str, work: Work, least: Work) -> tuple[str, ...]:
    moved, at_least = work.loaded + work.stored, least.loaded + least.stored
    peak = H100.matrix_flops if work.matrix_units else H100.vector_flops
    return (
        title,
        "–" if work is least else f"{work.programs:,}",
        f"{moved / 1e6:,.1f}",
        f"{moved / at_least:.2f} ×",
        f"{work.flops / 1e9:,.1f}",
        f"{work.intensity:.1f}",
        "memory" if moved / H100.bandwidth > work.flops / peak else "arithmetic",
        f"{work.seconds(H100) * 1e6:,.0f} µs",
    )


def main() -> None:
    """Run each step, then print the tables."""
    call = random_call([(45, 13), (22, 1), (70, 1)])
    oracle = {f.name: getattr(call, f.name) for f in fields(call) if f.name != "config"}
    expected = reference.paged_attention(**oracle)
    for step in STEPS.values():
        result = step.attend(token_by_token(call) if step.decode_only else call)
        error = float((result - expected).abs().max() / expected.abs().max())
        print(f"{step.title:<28} {step.source:<42} largest error {error:.1e}")
    for name, shape in BATCHES.items():
        print(f"\n{name}\n")
        for row in [COLUMNS, *table_rows(shape)]:
            print(LINE.format(*row))


if __name__ == "__main__":
    main()
