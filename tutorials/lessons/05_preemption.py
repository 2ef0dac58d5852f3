"""Lesson 5: preemption. No block is free. Who gives way, and what does it cost?

python tutorials/lessons/05_preemption.py [--pictures DIR]
"""

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache

from pictures import memory, timeline
from telling import tell

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.events import Event
from pagelens.engine.memory_map import MemoryMap, SequenceView
from pagelens.engine.runner import ScriptedRunner

NUM_BLOCKS = 8
NUM_HOST_BLOCKS = 8
WAYS = {
    "recompute": {"enable_prefix_caching": False},
    "recompute, blocks cached": {"enable_prefix_caching": True},
    "swap": {"enable_prefix_caching": False, "host_blocks": NUM_HOST_BLOCKS},
}
"""Three ways to take blocks away, as options of `scripted_engine`."""


def scripted_engine(num_blocks: int = NUM_BLOCKS, host_blocks: int = 0, **options: object) -> Engine:
    """The real scheduler with a script for a model, and blocks of 4."""
    config = EngineConfig(
        block_size=4,
        num_gpu_blocks_override=num_blocks,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        **options,  # type: ignore[arg-type]
    )
    runner = ScriptedRunner(
        lambda sequence, sample: 1000 * sequence.request.arrival + 500 * sample + sequence.num_tokens
    )
    return Engine(config, runner=runner, scripted_host_blocks=host_blocks)


def add(engine: Engine, prompt_length: int, answer_length: int, n: int = 1) -> None:
    """Queue a request whose prompt is like no other's."""
    first = 100_000 * (1 + engine.log.next_seq)
    engine.add_request(list(range(first, first + prompt_length)), SamplingParams(max_tokens=answer_length, n=n))


def events_of(engine: Engine) -> list[Event]:
    """Serve what is queued; all events of the run."""
    while engine.has_work:
        engine.step()
    return engine.log.read(0) or []


@cache
def crowded_engine(way: str) -> Engine:
    """Three requests of 8 tokens grow to 20, which takes 5 blocks each; the pool has 8."""
    engine = scripted_engine(**WAYS[way])  # type: ignore[arg-type]
    for _ in range(3):
        add(engine, 8, 12)
    events_of(engine)
    return engine


def swapping_engine() -> Engine:
    """The same with a host pool."""
    return crowded_engine("swap")


def run(way: str) -> list[Event]:
    """What that engine did."""
    return events_of(crowded_engine(way))


@dataclass
class Cost:
    """What preemption cost a run."""

    steps: int
    preemptions: int
    again: int
    moved: int


def cost_of(events: list[Event]) -> Cost:
    """Count it from the events: tokens computed more than once, blocks moved between the pools in either direction."""
    times: Counter[tuple[str, int]] = Counter()
    moved = 0
    for event in events:
        if isinstance(event, ev.SequenceScheduled):
            times.update((event.sequence, event.start + i) for i in range(event.num_tokens))
        elif isinstance(event, ev.BlocksSwappedOut | ev.BlocksSwappedIn):
            moved += len(event.blocks)
    return Cost(
        steps=sum(isinstance(event, ev.StepPlanned) for event in events),
        preemptions=sum(isinstance(event, ev.RequestPreempted) for event in events),
        again=times.total() - len(times),
        moved=moved,
    )


def who_gives_way() -> list[ev.RequestPreempted]:
    """Three texts, eight blocks

    Returns the preemptions of the run that computes again.
    """
    preempted = [event for event in run("recompute") if isinstance(event, ev.RequestPreempted)]
    for event in preempted:
        print(
            f"step {event.step:2}: {event.for_sequence} needs {event.needs} block, {event.free} are free. "
            f"{event.request} gives way and loses {event.lost_tokens} tokens."
        )
    return preempted


def the_moment() -> list[Event]:
    """The plan in which it happens

    Returns the events of that plan, without those of the sequences that merely go on.
    """
    events = run("recompute")
    first = next(event for event in events if isinstance(event, ev.RequestPreempted))
    told: dict[type[Event], str] = {
        ev.SequenceScheduled: "{0.sequence} position {0.start}",
        ev.RequestPreempted: "{0.request} for {0.for_sequence}",
        ev.BlockReleased: "block {0.block} of {0.sequence}, now {0.state}",
        ev.BlockAllocated: "block {0.block} to {0.sequence} entry {0.index}",
        ev.StepPlanned: "{0.sequences}, blocked {0.blocked}",
    }
    shown = [event for event in events if event.step == first.step and type(event) in told and event.phase == "plan"]
    for event in shown:
        text = told[type(event)].format(event)
        print(f"{event.seq:>3} {type(event).__name__:18}{text:29}{event.why:23} cause {event.cause:>2}")
    return shown


def three_ways() -> dict[str, Cost]:
    """Compute again, find again, or move

    Returns the cost of each way.
    """
    costs = {way: cost_of(run(way)) for way in WAYS}
    print(f"{'':26}{'steps':>6}{'preemptions':>13}{'computed again':>16}{'blocks moved':>14}")
    for way, cost in costs.items():
        print(f"{way:26}{cost.steps:>6}{cost.preemptions:>13}{cost.again:>16}{cost.moved:>14}")
    return costs


@cache
def forked_swap() -> list[Event]:
    """A grows; B answers twice, and its two answers share the prompt's block when they have to go."""
    engine = scripted_engine(enable_prefix_caching=False, host_blocks=NUM_HOST_BLOCKS)
    add(engine, 8, 16)
    add(engine, 6, 10, n=2)
    return events_of(engine)


def picture_around(kind: type[Event], after: bool) -> MemoryMap:
    """The memory of `forked_swap` at the end of the step before, or of, the first event of a kind."""
    events = forked_swap()
    step = next(event.step for event in events if isinstance(event, kind))
    last = ev.StepCommitted if not after else ev.TokensWritten
    wanted = step if after else step - 1
    end = next(event.seq for event in events if isinstance(event, last) and event.step == wanted)
    return MemoryMap(num_blocks=NUM_BLOCKS, block_size=4).fold(events[: end + 1])


def what_a_swap_moves() -> list[ev.BlocksSwappedOut | ev.BlocksSwappedIn]:
    """Only what nobody else holds

    Returns the swaps.
    """
    swaps = [e for e in forked_swap() if isinstance(e, ev.BlocksSwappedOut | ev.BlocksSwappedIn)]
    for event in swaps:
        way = "to host" if isinstance(event, ev.BlocksSwappedOut) else "back from host"
        print(f"step {event.step:2}: {event.sequence} entries {event.indices} {way} blocks {event.host_blocks}")
    return swaps


@cache
def bursty(policy: str) -> Cost:
    """40 requests of very different lengths in a pool of 48 blocks."""
    engine = scripted_engine(num_blocks=48, enable_prefix_caching=False, policy=policy)
    numbers = random.Random(5)
    for _ in range(40):
        add(engine, numbers.choice([4, 8, 40, 60]), numbers.choice([4, 20, 60]))
    return cost_of(events_of(engine))


def which_victim() -> dict[str, Cost]:
    """Does it matter who?

    Returns the cost by the name of the policy.
    """
    costs = {}
    for name in ("DefaultPolicy", "FewestLostTokens", "MostBlocksFreed"):
        costs[name] = bursty(f"pagelens.engine.policies:{name}")
        print(f"{name:17} {costs[name].preemptions:3} preemptions, {costs[name].again:5} tokens computed again")
    return costs


def nobody_starves() -> tuple[Counter[str], Counter[str]]:
    """Three blocks for twenty requests, and one that is too long

    Returns how often each request was preempted, and how the sequences ended.
    """
    engine = scripted_engine(num_blocks=3, enable_prefix_caching=False)
    for _ in range(20):
        add(engine, 3, 9)
    add(engine, 3, 60)
    events = events_of(engine)
    preempted = Counter(event.request for event in events if isinstance(event, ev.RequestPreempted))
    ends = Counter(str(event.reason) for event in events if isinstance(event, ev.SequenceFinished))
    longest = engine.log.snapshot().sequences["U.0"]
    print(f"Ends: {', '.join(f'{count} {reason}' for reason, count in ends.items())}.")
    print(f"{len(preempted)} requests were preempted, none more than {max(preempted.values())} times.")
    print(f"U.0 had {len(longest.token_ids)} tokens when it ended with {longest.reason}: 3 blocks of 4 are full.")
    return preempted, ends


def recompute_timeline() -> str:
    """Hatched: preempted."""
    title = "Recompute: C, then B is preempted (hatched); when it comes back, one cell computes many tokens again."
    return timeline(run("recompute"), title)


def swap_timeline() -> str:
    """The same with a host pool."""
    title = "Swap: the same texts give way (hatched); when they come back, each cell computes a single token."
    return timeline(run("swap"), title)


def _position(view: SequenceView, position: int) -> str:
    return f"{view.sequence[0]}{position}"


def before_the_swap() -> str:
    """Every block is in use."""
    title = "Before: three tables and no free block; the two answers of B share the block of their prompt."
    return memory(picture_around(ev.BlocksSwappedOut, after=False), title, label=_position, num_host_blocks=4)


def after_the_swap() -> str:
    """B is on the host, but for the shared block."""
    title = "After: the blocks that only B held are in the host pool; the shared block stays on the device."
    return memory(picture_around(ev.BlocksSwappedOut, after=True), title, label=_position, num_host_blocks=4)


PARTS = [who_gives_way, the_moment, three_ways, what_a_swap_moves, which_victim, nobody_starves]
PICTURES = [recompute_timeline, swap_timeline, before_the_swap, after_the_swap]

if __name__ == "__main__":
    tell(PARTS, PICTURES)
