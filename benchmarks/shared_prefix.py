"""1,000 requests that share a system prompt: its blocks exist once, and its tokens are computed once.

    python benchmarks/shared_prefix.py [--requests 1000]

Two parts:
  memory      a script for a model, all requests running at once: blocks for the first 64 tokens, hit rate by tokens,
              with one salt for all, two salts, and a salt for each
  first token the embedded model, torch kernels: time from arrival to first token with the prefix cache on and off,
              all requests at once (work and queue), and one by one (work alone); the two alternate
"""

import argparse
import random
import statistics

from follow import empty_picture, follow
from machine import print_machine

from pagelens.engine import LLM, Engine, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.run_stats import RunStats
from pagelens.engine.runner import ScriptedRunner

BLOCK_SIZE = 16
SYSTEM_PROMPT = list(range(100, 164))
NUM_SHARED = len(SYSTEM_PROMPT) // BLOCK_SIZE


def prompts(count: int) -> list[list[int]]:
    """The system prompt and a question of 8 to 24 tokens of one's own."""
    generator = random.Random(0)
    return [SYSTEM_PROMPT + generator.choices(range(1000, 4000), k=generator.randint(8, 24)) for _ in range(count)]


def read(engine: Engine) -> tuple[RunStats, list[ev.Event]]:
    """Run to the end; the figures and all events."""
    picture, stats, events = empty_picture(engine), RunStats(engine.log.header), list[ev.Event]()
    while engine.has_work:
        engine.step()
        events += follow(engine, picture, stats)
    return stats, events


def memory(count: int, num_salts: int) -> tuple[int, int, RunStats]:
    """Blocks taken for the system prompt over the whole run, most tables that shared one, and the run's figures."""
    config = EngineConfig(
        num_gpu_blocks_override=8 * count,
        max_model_len=256,
        max_num_seqs=count,
        max_num_batched_tokens=100 * count,
        block_size=BLOCK_SIZE,
    )
    engine = Engine(config, runner=ScriptedRunner(lambda sequence, sample_index: sequence.num_tokens))
    for number, prompt in enumerate(prompts(count)):
        salt = str(number % num_salts) if num_salts > 1 else ""
        engine.add_request(prompt, SamplingParams(max_tokens=4, temperature=0), cache_salt=salt)
    stats, events = read(engine)
    taken = {e.block for e in events if isinstance(e, ev.BlockAllocated) and e.index < NUM_SHARED}
    holders = max((e.ref_count for e in events if isinstance(e, ev.BlockShared)), default=1)
    return len(taken), holders, stats


def engine_with_model(caching: bool) -> Engine:
    """The embedded model with room for everything."""
    return LLM(
        kernel="torch",
        num_gpu_blocks_override=2048,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        enable_prefix_caching=caching,
        log_events=True,
    ).engine


def first_token_ms(engine: Engine, requests: list[list[int]]) -> list[float]:
    """Milliseconds to the first token of each request, submitted together, from the events' clock."""
    engine.reset_prefix_cache()
    params, arrived, ms = SamplingParams(max_tokens=1, temperature=0), dict[str, int](), list[float]()
    cursor = engine.log.next_seq
    for prompt in requests:
        engine.add_request(prompt, params)
    while engine.has_work:
        engine.step()
        events = engine.log.read(cursor)
        assert events is not None
        cursor += len(events)
        for event in events:
            if isinstance(event, ev.RequestArrived):
                arrived[event.sequence] = event.t
            elif isinstance(event, ev.TokensGenerated):
                ms += [(event.t - arrived[name]) / 1e6 for name in event.sequences]
    return ms


def one_by_one_ms(engine: Engine, requests: list[list[int]]) -> list[float]:
    """The same, each submitted when the one before has its token; the cache is warm after the first."""
    times = []
    for prompt in requests:
        engine.add_request(prompt, SamplingParams(max_tokens=1, temperature=0))
        started = engine.log.next_seq
        engine.step()
        events = engine.log.read(started)
        assert events is not None
        times.append((events[-1].t - events[0].t) / 1e6)
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    print_machine()
    print(f"\nmemory: {args.requests} requests at once, the first {len(SYSTEM_PROMPT)} tokens in common")
    for num_salts in (1, 2, args.requests):
        blocks, holders, stats = memory(args.requests, num_salts)
        print(
            f"  {num_salts:5} salt(s)  {blocks:5} blocks for the system prompt, in up to {holders} tables each, ",
            end="",
        )
        print(f"hit rate {stats.hit_rate:.1%}, blocks saved {stats.shared_by_all.peak:.1%}")

    engines = {caching: engine_with_model(caching) for caching in (True, False)}
    requests = prompts(args.requests)
    together: dict[bool, list[float]] = {True: [], False: []}
    alone: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(args.repetitions):
        for caching, engine in engines.items():
            together[caching].append(statistics.mean(first_token_ms(engine, requests)))
            engine.reset_prefix_cache()
            alone[caching].append(statistics.median(one_by_one_ms(engine, requests[:100])))
    print("\nfirst token: embedded model, fp32, torch kernels; median of the repetitions")
    for name, times in (("all at once, mean", together), ("one by one, median", alone)):
        on, off = statistics.median(times[True]), statistics.median(times[False])
        print(f"  {name:20} cache on {on:9.2f} ms, off {off:9.2f} ms: {off / on:.2f} times sooner")


if __name__ == "__main__":
    main()
