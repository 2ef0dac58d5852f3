"""Where our own time goes: one batch under torch's profiler, with the parts that it cannot see given a name.

The scheduler, the layout of the batch, the kernels in Numba and the text are Python or machine code that torch knows
nothing of; `record_function` makes rows of them. Times are without what was called and has a row of its own.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from contenders import greedy, our_engine
from torch.profiler import ProfilerActivity, profile, record_function
from workloads import WARM_UP_TOKENS, Workload

from pagelens.engine import Engine

TOP = 12


def print_profile(folder: str, dtype: str, workload: Workload, vocab_size: int) -> None:
    """The rows that take longest, and how much longer the batch takes under the profiler.

    A quarter of the new tokens will do: reading what the profiler saw takes longer than the batch.
    """
    params = greedy(max(1, workload.num_new // 4))
    llm = our_engine(folder, dtype)
    llm.generate(workload.prompts(vocab_size, 0), greedy(WARM_UP_TOKENS), progress=False)
    started = time.perf_counter()
    llm.generate(workload.prompts(vocab_size, 1), params, progress=False)
    alone = time.perf_counter() - started
    name_the_parts(llm.engine)
    with profile(activities=[ProfilerActivity.CPU]) as seen, record_function("everything else in Python"):
        llm.generate(workload.prompts(vocab_size, 2), params, progress=False)
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = sum(row.self_cpu_time_total for row in rows)
    print(f"  {params.max_tokens} new tokens: {alone:.2f} s alone, {total / 1e6:.2f} s under the profiler")
    for row in rows[:TOP]:
        share = row.self_cpu_time_total / total
        print(f"  {row.key[:44]:46}{share:7.1%}{row.self_cpu_time_total / 1e6:9.3f} s{row.count:9,} calls")


def name_the_parts(engine: Engine) -> None:
    """Give the parts of this engine rows of their own."""
    assert engine.loaded is not None
    attention = engine.loaded.attention
    attention.kernels = replace(
        attention.kernels,
        paged_attention=_named("paged attention", attention.kernels.paged_attention),
        write_kv=_named("write keys and values", attention.kernels.write_kv),
    )
    parts: list[tuple[Any, str, str]] = [
        (engine.scheduler, "plan", "scheduler: plan"),
        (engine.scheduler, "commit", "scheduler: commit"),
        (engine.runner, "prepare", "lay out the batch"),
        (engine.runner, "execute", "model and sampler in Python"),
        (engine.outputs, "process", "text and ends"),
    ]
    for owner, method, name in parts:
        setattr(owner, method, _named(name, getattr(owner, method)))


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def named(*arguments: Any, **options: Any) -> Any:
        with record_function(name):
            return function(*arguments, **options)

    return named
