"""Lesson 6: waste. How much memory holds no token, with paging and without, for the same requests.

python tutorials/lessons/06_waste.py [--pictures DIR]
"""

import random
from dataclasses import dataclass
from functools import cache

from pictures import bars, strip
from telling import tell

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.contiguous import ContiguousServer, Reservation, maximum, power_of_two, true_length
from pagelens.engine.memory_map import MemoryMap
from pagelens.engine.runner import ScriptedRunner
from pagelens.engine.waste import SlotSplit, StepWaste, WasteMeter, sum_of

NUM_SLOTS = 8192
MAX_MODEL_LEN = 2048
BUDGET = 512
SYSTEMS: dict[str, Reservation] = {
    "maximum": maximum(MAX_MODEL_LEN),
    "power of two": power_of_two(MAX_MODEL_LEN),
    "true length": true_length(),
}
"""What the contiguous systems reserve for a request."""
CLASSES = {"tokens": "a", "reservation": "c", "unfilled": "hatch", "external": "b", "free": "blank"}


def lengths(count: int = 150) -> list[tuple[int, int]]:
    """(prompt, answer) in tokens: most are short, some are ten times as long."""
    numbers = random.Random(11)

    def draw(median: float, most: int) -> int:
        return max(1, min(most, round(median * numbers.lognormvariate(0, 0.9))))

    return [(draw(180, 1200), draw(120, 800)) for _ in range(count)]


@dataclass
class Outcome:
    """A run of all requests, which arrive together. `running` is the mean while somebody waits."""

    steps: list[StepWaste]
    running: float
    most_unfilled: int = 0

    @property
    def saturated(self) -> SlotSplit:
        """The split, summed over the steps in which somebody waited."""
        return sum_of(self.steps, while_waiting=True)


@cache
def contiguous(name: str) -> Outcome:
    """One piece of memory for each request."""
    server = ContiguousServer(NUM_SLOTS, SYSTEMS[name], BUDGET, max_num_seqs=256)
    for number, (prompt, answer) in enumerate(lengths()):
        server.add(str(number), prompt, answer)
    running = []
    while server.has_work:
        server.step()
        if server.waiting:
            running.append(len(server.running))
    return Outcome(server.steps, sum(running) / len(running))


@cache
def paged(block_size: int = 16) -> Outcome:
    """The engine, with as many slots in blocks; measured from its events."""
    num_blocks = NUM_SLOTS // block_size
    config = EngineConfig(
        block_size=block_size,
        num_gpu_blocks_override=num_blocks,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=256,
        max_num_batched_tokens=BUDGET,
        enable_prefix_caching=False,
    )
    engine = Engine(config, runner=ScriptedRunner(lambda sequence, _: sequence.num_tokens))
    for prompt, answer in lengths():
        engine.add_request([7] * prompt, SamplingParams(max_tokens=answer))
    picture = MemoryMap(num_blocks=num_blocks, block_size=block_size)
    meter, cursor, running = WasteMeter(picture), 0, []
    while engine.has_work:
        engine.step()
        for event in engine.log.read(cursor) or []:
            picture.apply(event)
            meter.apply(event, picture)
        cursor = engine.log.next_seq
        if engine.scheduler.waiting:
            running.append(len(engine.scheduler.running))
    return Outcome(meter.steps(), sum(running) / len(running), meter.most_unfilled)


def outcomes() -> dict[str, Outcome]:
    """All four systems."""
    return {name: contiguous(name) for name in SYSTEMS} | {"paged": paged()}


def four_systems() -> dict[str, Outcome]:
    """The same requests in the same memory

    Returns the outcome of each system.
    """
    heads = ("tokens", "reserv.", "unfilled", "external", "free")
    print(" " * 13 + "".join(f"{head:>10}" for head in (*heads, "running", "steps")))
    for name, outcome in outcomes().items():
        shares = "".join(f"{share:>10.1%}" for share in outcome.saturated.shares().values())
        print(f"{name:13}{shares}{outcome.running:>10.1f}{len(outcome.steps):>10}")
    return outcomes()


def at_most_a_block() -> tuple[int, float]:
    """What paging still wastes

    Returns the most empty slots that a sequence held, and the share of allocated slots without a token, whole run.
    """
    outcome = paged()
    wasted = sum_of(outcome.steps).wasted_share
    print(f"Most empty slots of any sequence at any time: {outcome.most_unfilled}, with blocks of 16.")
    print(f"Allocated slots that held no token, over the whole run: {wasted:.2%}.")
    return outcome.most_unfilled, wasted


def block_sizes() -> dict[int, float]:
    """Larger blocks

    Returns block size -> share of allocated slots without a token.
    """
    shares = {}
    for size in (1, 4, 16, 64, 256):
        shares[size] = sum_of(paged(size).steps).wasted_share
        print(f"blocks of {size:3}: {shares[size]:6.2%} wasted, tables of up to {-(-MAX_MODEL_LEN // size):4} entries")
    return shares


@cache
def holes() -> tuple[list[tuple[int, int, int, int, str]], int, int, int]:
    """A small memory at a moment when the first that waits would fit, but not in one piece.

    Returns the pieces, the slots, the free ones, and how many the waiting request needs.
    """
    server = ContiguousServer(256, true_length(), BUDGET, max_num_seqs=64)
    numbers = random.Random(2)
    for number in range(40):
        server.add(chr(ord("A") + number % 26), numbers.randint(8, 60), numbers.randint(4, 30))
    while not (server.steps and server.steps[-1].split.external and server.memory.num_free > 40):
        server.step()
    pieces = [(j.start, j.num_computed, j.slots_used, j.reserved, j.name) for j in server.running]
    return sorted(pieces), 256, server.memory.num_free, server.waiting[0].reserved


def no_hole_is_large_enough() -> tuple[int, int]:
    """Free, and of no use

    Returns (free slots, slots that the waiting request needs).
    """
    pieces, num_slots, free, needs = holes()
    print(f"{len(pieces)} requests hold exactly what they will need. {free} of {num_slots} slots are free.")
    print(f"The next request needs {needs}, and no hole has as many.")
    return free, needs


def memory_in_a_row() -> str:
    """Pieces and holes."""
    pieces, num_slots, free, needs = holes()
    title = f"Contiguous memory: {len(pieces)} pieces with holes between them; {free} free slots, {needs} are needed."
    return strip(pieces, num_slots, title)


def four_bars() -> str:
    """The split of the slots."""
    rows = {name: outcome.saturated.shares() for name, outcome in outcomes().items()}
    notes = {name: f"{outcome.running:.1f} running" for name, outcome in outcomes().items()}
    title = (
        "Share of the slots that hold tokens, are reserved, unfilled, lost between pieces, or free, for four systems."
    )
    return bars(rows, title, CLASSES, notes)


PARTS = [no_hole_is_large_enough, four_systems, at_most_a_block, block_sizes]
PICTURES = [memory_in_a_row, four_bars]

if __name__ == "__main__":
    tell(PARTS, PICTURES)
