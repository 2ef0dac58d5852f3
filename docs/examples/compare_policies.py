"""Run 24 requests under three policies and count, from the events, what preemption cost."""

import random

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.runner import ScriptedRunner


def run(policy: str) -> dict[str, int]:
    """Serve the same requests in a pool of 40 small blocks."""
    config = EngineConfig(
        block_size=4,
        num_gpu_blocks_override=40,
        max_model_len=256,
        max_num_batched_tokens=64,
        policy=policy,
    )
    script = ScriptedRunner(lambda sequence, sample_index: 10_000 + sequence.num_tokens)
    engine = Engine(config, runner=script)
    numbers = random.Random(7)
    for request in range(24):
        prompt = [100 * request + position for position in range(numbers.randint(4, 40))]
        engine.add_request(prompt, SamplingParams(max_tokens=numbers.randint(8, 80)))
    while engine.has_work:
        engine.step()

    events = engine.log.read(0) or []
    computed = sum(event.num_tokens for event in events if isinstance(event, ev.SequenceScheduled))
    sequences = engine.log.snapshot().sequences.values()
    needed = sum(len(view.token_ids) - 1 for view in sequences)  # nobody reads the last token
    return {
        "steps": engine.num_steps,
        "preemptions": sum(isinstance(event, ev.RequestPreempted) for event in events),
        "tokens computed twice": computed - needed,
    }


if __name__ == "__main__":
    for name in ("", "victims:LeastLost", "victims:MostFreed"):
        counts = ", ".join(f"{count:4} {what}" for what, count in run(name).items())
        print(f"{name.partition(':')[2] or 'default':10}{counts}")
