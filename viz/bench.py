"""Measuring the engine under a load, for `pagelens bench`: one way to serve it, and figures of what was seen.

    arrival       first token        next tokens
    A  0.00 s     ----- TTFT ----->  | ITL | ITL | ...      nothing waits for an answer before it arrives:
    B  0.12 s          ---- TTFT -------->  | ITL | ...     an engine that is too slow grows a queue, and TTFT shows it

Prompts are random tokens and answers have a fixed length, so that two engines do the same work.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from pagelens.engine import Engine, EngineConfig, PagelensError, SamplingParams
from pagelens.engine.request import FinishReason

Told = Callable[[int], None]
"""Is told how many tokens a step has generated."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Load:
    """What is asked of the engine.

    Attributes:
        num_requests: how many requests.
        prompt_len: fewest and most tokens of a prompt, drawn evenly.
        prefix_len: tokens before those, the same in all prompts.
        max_tokens: tokens to generate for each.
        request_rate: arrivals a second, at random moments (Poisson); None is all at once.

    Raises:
        PagelensError: a value is out of range.
    """

    num_requests: int
    prompt_len: tuple[int, int]
    max_tokens: int
    prefix_len: int = 0
    request_rate: float | None = None

    def __post_init__(self) -> None:
        shortest, longest = self.prompt_len
        if not 1 <= shortest <= longest:
            raise PagelensError(f"the prompts have {shortest} to {longest} tokens: give 1 or more, the smaller first")
        for name in ("num_requests", "max_tokens"):
            if getattr(self, name) < 1:
                raise PagelensError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.prefix_len < 0:
            raise PagelensError(f"prefix_len is {self.prefix_len}: 0 or more is allowed")
        if self.request_rate is not None and self.request_rate <= 0:
            raise PagelensError(f"request_rate is {self.request_rate} a second: it must be above 0")

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random tokens."""
        draw = random.Random(seed)
        prefix = draw.choices(range(vocab_size), k=self.prefix_len)
        sizes = [draw.randint(*self.prompt_len) for _ in range(self.num_requests)]
        return [prefix + draw.choices(range(vocab_size), k=size) for size in sizes]

    def arrivals(self, seed: int) -> list[float]:
        """Seconds from the start, ascending."""
        draw, now, moments = random.Random(seed), 0.0, list[float]()
        for _ in range(self.num_requests):
            now += draw.expovariate(self.request_rate) if self.request_rate else 0.0
            moments.append(now)
        return moments


@dataclass
class Served:
    """What was seen of one load. Seconds; `first_tokens` by request, `gaps` between two tokens of a sequence."""

    seconds: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def figures(self) -> Figures:
        """By name, with the unit in the name."""
        ttft = np.percentile(self.first_tokens, (50, 95)) * 1e3
        itl = np.percentile(self.gaps or [0.0], (50, 95)) * 1e3
        return {
            "output_tokens_per_second": self.num_output_tokens / self.seconds,
            "total_tokens_per_second": (self.num_prompt_tokens + self.num_output_tokens) / self.seconds,
            "requests_per_second": len(self.first_tokens) / self.seconds,
            "ttft_ms_p50": float(ttft[0]),
            "ttft_ms_p95": float(ttft[1]),
            "itl_ms_p50": float(itl[0]),
            "itl_ms_p95": float(itl[1]),
            "seconds": self.seconds,
            "steps": self.num_steps,
            "preemptions": self.num_preemptions,
        }


def serve(engine: Engine, load: Load, seed: int, told: Told) -> Served:
    """Serve a load to its end.

    Raises:
        PagelensError: a prompt and its answer cannot fit, or a request ended before its last token.
    """
    assert engine.loaded is not None
    prompts, arrivals = load.prompts(engine.loaded.config.vocab_size, seed), load.arrivals(seed)
    longest = max(map(len, prompts)) + load.max_tokens
    if longest > engine.max_model_len:
        raise PagelensError(
            f"a prompt and its answer have up to {longest} tokens, but at most {engine.max_model_len} are allowed "
            "(max_model_len): shorten the prompts or lower max_tokens"
        )
    params = SamplingParams(max_tokens=load.max_tokens, temperature=0, ignore_eos=True)
    served, num_arrived, newest = Served(), 0, dict[str, float]()
    started, first_step = time.perf_counter(), engine.num_steps
    while num_arrived < len(prompts) or engine.has_work:
        now = time.perf_counter() - started
        while num_arrived < len(prompts) and arrivals[num_arrived] <= now:
            request = engine.add_request(prompts[num_arrived], params)
            newest[request.sequences[0].name] = arrivals[num_arrived]
            num_arrived += 1
        if not engine.has_work:
            time.sleep(arrivals[num_arrived] - now)
            continue
        outputs = engine.step()
        now = time.perf_counter() - started
        for output in outputs:
            sequence = output.sequence
            if output.finish_reason not in (None, FinishReason.LENGTH):
                raise PagelensError(_ended_early(engine, sequence.num_tokens, output.finish_reason))
            first = sequence.num_tokens == sequence.num_prompt_tokens + 1
            (served.first_tokens if first else served.gaps).append(now - newest[sequence.name])
            newest[sequence.name] = now
            if output.finish_reason is not None:
                served.num_preemptions += sequence.request.num_preemptions
        served.num_output_tokens += len(outputs)
        told(len(outputs))
    served.seconds = time.perf_counter() - started
    served.num_prompt_tokens = sum(map(len, prompts))
    served.num_steps = engine.num_steps - first_step
    return served


@dataclass
class Result:
    """What one engine reached: `engine` says what ran, `figures` are the medians of its rounds."""

    engine: dict[str, Any]
    figures: Figures


def in_turns(configs: Mapping[str, EngineConfig], load: Load, repeat: int, told: Told) -> dict[str, Result]:
    """Measure each engine `repeat` times. They take turns, and one is in memory at a time; loading does not count, nor
    does a first short request.
    """
    runs: dict[str, list[Figures]] = {name: [] for name in configs}
    engines: dict[str, dict[str, Any]] = {}
    for number in range(repeat):
        for name, config in configs.items():
            engine = Engine(config, log_events=False)
            serve(engine, Load(1, (1, 1), min(2, load.max_tokens)), 0, lambda num_tokens: None)
            runs[name].append(serve(engine, load, config.seed + number, told).figures())
            header = engine.log.header
            engines[name] = {"model": header.model, "kernel": header.kernel, "num_blocks": header.num_blocks}
    return {
        name: Result(engines[name], {figure: median(run[figure] for run in each) for figure in each[0]})
        for name, each in runs.items()
    }


def _ended_early(engine: Engine, num_tokens: int, reason: FinishReason | None) -> str:
    if reason is FinishReason.OUT_OF_BLOCKS:
        blocks = engine.manager.pool.num_blocks
        return f"a request of {num_tokens} tokens outgrew the pool of {blocks} blocks: raise num_gpu_blocks_override"
    return f"a request ended after {num_tokens} tokens, for the reason {reason}: there is nothing to measure"
