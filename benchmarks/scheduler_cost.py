"""What scheduler and cache manager cost per scheduled sequence and step, without a model.

    python benchmarks/scheduler_cost.py

Budget: at most 10 µs per scheduled sequence over a mixed load, at most 4 µs for a decode that needs no block.
"""

import random
import time

from machine import print_machine

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.request import Sequence
from pagelens.engine.runner import ScriptedRunner


def engine(num_blocks: int, log_events: bool) -> Engine:
    config = EngineConfig(
        num_gpu_blocks_override=num_blocks,
        max_model_len=4096,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
    )

    def next_token(sequence: Sequence, sample_index: int) -> int:
        return sequence.num_tokens

    return Engine(config, log_events=log_events, runner=ScriptedRunner(next_token))


def mixed_load(log_events: bool) -> float:
    """256 requests of 16-512 + 16-256 tokens, a third with a common prefix; µs per scheduled sequence and step."""
    random.seed(0)
    served = engine(12_000, log_events)
    prefix = list(range(64))
    for number in range(256):
        prompt = [random.randrange(1000) for _ in range(random.randint(16, 512))]
        params = SamplingParams(max_tokens=random.randint(16, 256), temperature=0)
        served.add_request(prefix + prompt if number % 3 == 0 else prompt, params)
    return _microseconds_per_sequence(served)


def decode_without_a_new_block(log_events: bool) -> float:
    """256 sequences, the 14 steps in which no block boundary is crossed; µs per sequence and step."""
    served = engine(2_000, log_events)
    for number in range(256):
        served.add_request([number], SamplingParams(max_tokens=1000, temperature=0))
    served.step()
    times = [_timed_plan(served) for _ in range(14)]
    return min(times) / 256 * 1e6


def _timed_plan(served: Engine) -> float:
    started = time.perf_counter()
    plan = served.plan()
    planned = time.perf_counter() - started
    samples = served.launch(plan)
    started = time.perf_counter()
    served.scheduler.commit(plan, samples)
    return planned + time.perf_counter() - started


def _microseconds_per_sequence(served: Engine) -> float:
    seconds, sequences = 0.0, 0
    while served.has_work:
        started = time.perf_counter()
        plan = served.plan()
        seconds += time.perf_counter() - started
        samples = served.launch(plan)
        started = time.perf_counter()
        served.commit(plan, samples)
        seconds += time.perf_counter() - started
        sequences += len(plan.scheduled)
    return seconds / sequences * 1e6


def main() -> None:
    print_machine()
    for log_events in (False, True):
        state = "on" if log_events else "off"
        mixed = min(mixed_load(log_events) for _ in range(3))
        decode = min(decode_without_a_new_block(log_events) for _ in range(3))
        print(f"events {state:3}  mixed load {mixed:5.2f} µs per scheduled sequence (budget 10), ", end="")
        print(f"decode that needs no block {decode:5.2f} µs (budget 4)")


if __name__ == "__main__":
    main()
