"""Engine steps per second under Triton's interpreter, and what the events cost of them.

    python benchmarks/interpreted_speed.py

The embedded model, 4 sequences that grow to 256 tokens. Budget: at least 5 steps/s, events at most 1 % of a step
(events per step times the measured cost of one, over the time of a step).
"""

import time

from machine import print_machine

from pagelens.engine import LLM, SamplingParams
from pagelens.engine.event_log import EventLog
from pagelens.engine.events import BlockAllocated, BlockState, Why

PROMPT = "A hacker is a person who"


def emit_cost_ns() -> float:
    """Nanoseconds to append one event, best of five."""
    header = LLM(kernel="torch", num_gpu_blocks_override=8).engine.log.header

    def once(count: int = 20_000) -> float:
        log = EventLog(header)
        started = time.perf_counter_ns()
        for _ in range(count):
            log.emit(
                BlockAllocated,
                Why.TABLE_GROWS,
                0,
                block=1,
                sequence="A.0",
                index=1,
                ref_count=1,
                state=BlockState.USED,
            )
        return (time.perf_counter_ns() - started) / count

    return min(once() for _ in range(5))


def main() -> None:
    print_machine()
    llm = LLM(kernel="triton", log_events=True, num_gpu_blocks_override=128)
    engine = llm.engine
    print(f"kernel    {engine.kernel['why']}")
    params = SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True)
    words = " and the next one" * 60
    for number in range(4):
        engine.add_request(engine.tokenize(f"{number} {PROMPT}{words}")[:200], params)
    engine.step()
    times, before = [], engine.log.next_seq
    while len(times) < 55:
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
    events_per_step = (engine.log.next_seq - before) / len(times)
    seconds = sorted(times)[len(times) // 2]
    cost = emit_cost_ns()
    print(
        f"decode    {1 / seconds:.2f} steps/s, {seconds * 1e3:.0f} ms a step, 4 sequences of 201-256 tokens (budget 5)"
    )
    print(f"events    {events_per_step:.1f} per step x {cost:.0f} ns = ", end="")
    print(f"{events_per_step * cost / seconds / 1e9:.4%} of a step (budget 1 %)")


if __name__ == "__main__":
    main()
