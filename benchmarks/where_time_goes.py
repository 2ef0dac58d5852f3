"""Where our own time goes: one batch with a clock around each part of a step, for prefill steps and for decode steps.

    (a) 16 prompts of 16-256 tokens, bfloat16                     one step, in milliseconds
                                              2 prefills      62 decodes
    products                                      620.2   78 %      19.3   54 %
    attention                                     121.0   15 %       7.1   20 %
    ...

A part's time is without that of parts within it, so that they add up to the steps, which have a clock of their own. A
profiler would say more, but slows what lies between the products several times; a clock costs a microsecond.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import Any

from contenders import greedy, our_engine
from torch import nn
from workloads import WARM_UP_TOKENS, Workload

from pagelens.engine import Engine
from pagelens.engine.models.packed_linear import PackedLinear
from pagelens.engine.runner import ModelRunner

REST = "Python between them"


class Clock:
    """Seconds by part, of a number of steps, and of these steps as a whole."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.num_steps = 0
        self.seconds_of_steps = 0.0
        self._within: list[float] = []

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        @wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            self._within.append(0.0)
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                took = time.perf_counter() - started
                self.seconds[name] += took - self._within.pop()
                if self._within:
                    self._within[-1] += took

        return timed


def print_profile(folder: str, dtype: str, workload: Workload, vocab_size: int) -> None:
    """A table of the parts, and the seconds of the batch with and without the clock."""
    llm = our_engine(folder, dtype)
    llm.generate(workload.prompts(vocab_size, 0), greedy(WARM_UP_TOKENS), progress=False)
    started = time.perf_counter()
    llm.generate(workload.prompts(vocab_size, 1), greedy(workload.num_new), progress=False)
    alone = time.perf_counter() - started
    steps, timed = run_timed(llm.engine, workload.prompts(vocab_size, 2), workload.num_new)
    print(f"  {alone:.2f} s, {timed:.2f} s with the clock; a step, in milliseconds")
    parts = [name for name, _ in (steps["prefills"].seconds + steps["decodes"].seconds).most_common()]
    print(f"  {'':30}" + "".join(f"{clock.num_steps:9,} {kind:9}" for kind, clock in steps.items()))
    for name in [*(name for name in parts if name != REST), REST]:
        print(f"  {name:30}", end="")
        for clock in steps.values():
            count, total = max(1, clock.num_steps), max(clock.seconds.total(), 1e-9)
            print(f"{clock.seconds[name] / count * 1e3:9.2f}{clock.seconds[name] / total:7.0%}   ", end="")
        print()
    print(f"  {'a step':30}", end="")
    print("".join(f"{clock.seconds_of_steps / max(1, clock.num_steps) * 1e3:9.2f}{'':10}" for clock in steps.values()))


def run_timed(engine: Engine, prompts: list[list[int]], num_new: int) -> tuple[dict[str, Clock], float]:
    """The batch, step by step: the parts of prefill steps and of decode steps, and the seconds of it all."""
    clock = Clock()
    time_the_parts(engine, clock)
    steps = {"prefills": Clock(), "decodes": Clock()}
    launches: list[Any] = []
    execute, step = engine.runner.execute, clock.around(REST, engine.step)
    engine.runner.execute = lambda launch: launches.append(launch) or execute(launch)  # type: ignore[method-assign]
    started = time.perf_counter()
    engine.add_requests([(prompt, greedy(num_new)) for prompt in prompts])
    while engine.has_work:
        clock.seconds.clear()
        launches.clear()
        began = time.perf_counter()
        step()
        took = time.perf_counter() - began
        batch = launches[-1].batch if launches else None
        kind = steps["decodes" if batch is not None and batch.is_decode else "prefills"]
        kind.seconds_of_steps += took
        kind.seconds.update(clock.seconds)
        kind.num_steps += 1
    return steps, time.perf_counter() - started


def time_the_parts(engine: Engine, clock: Clock) -> None:
    """Put the clock around the parts of this engine."""
    assert engine.loaded is not None and isinstance(engine.runner, ModelRunner)
    attention = engine.loaded.attention
    kernels = attention.kernels
    names = {"add_rms_norm": "norms", "rotate": "rotation", "silu_and_mul": "SwiGLU"}
    ops = SimpleNamespace(**{op: clock.around(name, getattr(kernels.layer_ops, op)) for op, name in names.items()})
    attention.kernels = replace(
        kernels,
        paged_attention=clock.around("attention", kernels.paged_attention),
        write_kv=clock.around("keys and values written", kernels.write_kv),
    )
    parts: list[tuple[Any, str, str]] = [
        (engine.scheduler, "plan", "scheduling"),
        (engine.scheduler, "commit", "scheduling"),
        (engine.runner, "prepare", "the batch laid out"),
        (engine.runner.sampler, "results", "sampling"),
        (engine.outputs, "process", "text and ends"),
    ]
    for module in engine.loaded.model.modules():
        if isinstance(module, nn.Linear | PackedLinear):
            parts.append((module, "forward", "products"))
        if hasattr(module, "ops"):
            module.ops = ops
    for owner, method, name in parts:
        setattr(owner, method, clock.around(name, getattr(owner, method)))
