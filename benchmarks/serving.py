"""Serving requests of known lengths on a clock of its own: what a step costs is computed, not measured.

The step of a real GPU is the roofline of reading the weights and multiplying, plus reading the cache:

    seconds = max(weight bytes / bandwidth, 2 * parameters * new tokens / FLOP/s)
              + context tokens * KV bytes / bandwidth

An NVIDIA A100 of 80 GB: 2.0 TB/s, 312 TFLOP/s of bf16 taken at half. Memory for keys and values is 90 % of it, less the
weights. Scheduling is taken to cost nothing, paged attention to be as fast as contiguous.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from follow import empty_picture, follow
from lengths import Lengths

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.contiguous import StepWork
from pagelens.engine.runner import ScriptedRunner
from pagelens.engine.waste import WasteMeter

GB = 1_000_000_000


@dataclass(frozen=True)
class Machine:
    """A model on one A100: `parameters` (2 bytes each) and `kv_bytes` of keys and values per token."""

    name: str
    parameters: float
    kv_bytes: int
    bandwidth: float = 2.0e12
    flops: float = 156e12

    @property
    def num_slots(self) -> int:
        """Tokens whose keys and values fit."""
        return int((0.9 * 80 * GB - 2 * self.parameters) / self.kv_bytes)

    def step_seconds(self, work: StepWork) -> float:
        """Duration of a step."""
        weights = 2 * self.parameters / self.bandwidth
        compute = 2 * self.parameters * work.num_tokens / self.flops
        return max(weights, compute) + work.num_context_tokens * self.kv_bytes / self.bandwidth


MACHINES = [
    Machine("13B, 40 layers of 40 KV heads of 128 (the paper's OPT-13B)", 13e9, 2 * 2 * 40 * 40 * 128),
    Machine("8B, 32 layers of 8 KV heads of 128 (grouped queries)", 8e9, 2 * 2 * 32 * 8 * 128),
]


class Server(Protocol):
    """A `PagedServer` or a `ContiguousServer`."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def add(self, name: str, num_prompt: int, num_output: int) -> None:
        """Queue a request."""
        ...

    def step(self) -> StepWork:
        """One step."""
        ...


class PagedServer:
    """The real engine with a script for a model. Lengths only: prompts are all alike, so the prefix cache is off.

    With `measure`, `meter` reads the events of every step.
    """

    def __init__(
        self,
        num_slots: int,
        block_size: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        measure: bool = False,
    ) -> None:
        config = EngineConfig(
            num_gpu_blocks_override=num_slots // block_size,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=False,
        )
        self.engine = Engine(config, log_events=measure, runner=ScriptedRunner(lambda sequence, sample_index: 0))
        self.picture = empty_picture(self.engine)
        self.meter = WasteMeter(self.picture)
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.engine.has_work

    def add(self, name: str, num_prompt: int, num_output: int) -> None:
        """Queue a request."""
        self.engine.add_request([0] * num_prompt, SamplingParams(max_tokens=num_output, temperature=0), name)

    def step(self) -> StepWork:
        """One step of the engine."""
        plan = self.engine.plan()
        context = sum(item.start + item.num_tokens for item in plan.scheduled)
        outputs = self.engine.commit(plan, self.engine.launch(plan))
        self.num_preemptions += plan.num_preempted
        follow(self.engine, self.picture, self.meter)
        ended = [output.sequence.request.request_id for output in outputs if output.finish_reason is not None]
        return StepWork(plan.num_tokens, context, ended)


def serve_all(server: Server, lengths: list[Lengths]) -> int:
    """All requests arrive at once; returns the number of steps."""
    for number, (prompt, output) in enumerate(lengths):
        server.add(str(number), prompt, output)
    steps = 0
    while server.has_work:
        server.step()
        steps += 1
    return steps


def keeps_pace(
    server: Server, machine: Machine, lengths: list[Lengths], rate: float, seconds: float, limit: float
) -> bool:
    """Whether 90 % of the requests have at most `limit` seconds of latency per output token, queue and prompt included.

    Poisson arrivals, `rate` a second for so many seconds; the lengths in their order, from the start again when they
    are used up. Latency per output token is the paper's normalized latency (section 6.1).
    """
    generator = random.Random(0)
    arrivals, clock = [], 0.0
    while clock < seconds:
        clock += generator.expovariate(rate)
        arrivals.append(clock)
    clock, upcoming, late = 0.0, 0, 0
    while (upcoming < len(arrivals) or server.has_work) and late <= len(arrivals) // 10:
        if not server.has_work:
            clock = max(clock, arrivals[upcoming])
        while upcoming < len(arrivals) and arrivals[upcoming] <= clock:
            server.add(str(upcoming), *lengths[upcoming % len(lengths)])
            upcoming += 1
        work = server.step()
        clock += machine.step_seconds(work)
        for name in work.finished:
            number = int(name)
            late += clock - arrivals[number] > limit * lengths[number % len(lengths)].output
    return late <= len(arrivals) // 10


def sustained_rate(keeps_pace_at: Callable[[float], bool], low: float = 0.1, high: float = 20) -> float:
    """The highest rate (1/s) that is kept up, found by halving the ratio of the bounds to within 3 %."""
    while high / low > 1.03:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps_pace_at(middle) else (low, middle)
    return low
