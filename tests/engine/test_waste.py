"""The split of the paged pool's slots, from events alone."""

import random

import hypothesis.strategies as st
from hypothesis import given, settings
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import Engine, SamplingParams
from pagelens.engine.memory_map import MemoryMap
from pagelens.engine.waste import SlotSplit, WasteMeter, sum_of


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, n=n)


class Metered:
    """A scripted engine with a meter that reads its events, and what a look at the engine itself says."""

    def __init__(self, num_blocks: int, block_size: int = 4, host_blocks: int = 0, **options) -> None:
        runner = ShadowRunner(num_blocks, block_size, host_blocks=host_blocks)
        self.engine = scripted_engine(num_blocks, block_size, runner, host_blocks, **options)
        self.picture = MemoryMap(num_blocks=num_blocks, block_size=block_size)
        self.meter = WasteMeter(self.picture)
        self.seen: list[tuple[int, int]] = []  # allocated slots, tokens

    def step(self) -> None:
        plan = self.engine.plan()
        results = self.engine.launch(plan)
        if plan.scheduled or plan.swap_out:
            self.seen.append(
                _look(self.engine, {item.sequence: item.start + item.num_tokens for item in plan.scheduled})
            )
        self.engine.commit(plan, results)
        self.read()

    def run(self) -> list[SlotSplit]:
        while self.engine.has_work:
            self.step()
        self.read()
        return [step.split for step in self.meter.steps()]

    def read(self) -> None:
        for event in self.engine.log.read(self.picture.seq + 1) or []:
            self.picture.apply(event)
            self.meter.apply(event, self.picture)


def _look(engine: Engine, computed: dict) -> tuple[int, int]:
    """Allocated slots and tokens as the tables have them, after the launch: block by block, each counted once."""
    size, filled = engine.config.block_size, {}
    for sequence in engine.scheduler.running:
        end = computed.get(sequence, sequence.num_computed_tokens)
        for index, block in enumerate(engine.manager.tables[sequence.name]):
            filled[block] = max(filled.get(block, 0), min(size, end - index * size))
    for sequence in [*engine.scheduler.waiting, *engine.scheduler.parked]:  # swapped out: shared blocks may have stayed
        for index, block in enumerate(engine.manager.tables.get(sequence.name, ())):
            if block >= 0:
                filled[block] = max(filled.get(block, 0), min(size, sequence.num_computed_tokens - index * size))
    return len(filled) * size, sum(filled.values())


def test_an_empty_slot_is_a_reservation_if_it_is_filled_later() -> None:
    """Prompt of 6 and 4 new tokens, so 9 slots of 4: the third block ends with one token."""
    metered = Metered(4)
    metered.engine.add_request([1, 2, 3, 4, 5, 6], greedy(4))
    assert metered.run() == [
        SlotSplit(tokens=6, reservation=2, free=8),
        SlotSplit(tokens=7, reservation=1, free=8),
        SlotSplit(tokens=8, free=8),
        SlotSplit(tokens=9, unfilled=3, free=4),
    ]
    assert metered.meter.most_unfilled == 3 == metered.picture.block_size - 1


def test_an_aborted_request_never_fills_its_block() -> None:
    metered = Metered(4)
    request = metered.engine.add_request([1, 2, 3, 4, 5, 6], greedy(4))
    metered.step()
    metered.read()
    assert metered.meter.steps()[0].split == SlotSplit(tokens=6, reservation=2, free=8), "nobody knows yet"
    metered.engine.abort(request.request_id)
    assert metered.run() == [SlotSplit(tokens=6, unfilled=2, free=8)]


def test_steps_in_which_the_first_in_line_waits_for_blocks_are_marked() -> None:
    metered = Metered(4)
    for number in range(2):
        metered.engine.add_request([number] * 6, greedy(4))
    metered.run()
    steps = metered.meter.steps()
    assert [step.waits_for_memory for step in steps] == [True] * 4 + [False] * 4
    assert sum_of(steps, while_waiting=True).tokens == 6 + 7 + 8 + 9


def test_a_shared_block_counts_once() -> None:
    metered = Metered(16)
    metered.engine.add_request([1, 2, 3, 4, 5, 6], greedy(3, n=4))
    splits = metered.run()
    assert splits[0].allocated == 8, "one table"
    assert (splits[1].allocated, splits[1].tokens) == (4 + 4 * 4, 4 + 4 * 3), "the first block is shared, four are not"


def test_cached_blocks_are_free_and_full_when_they_come_back() -> None:
    metered = Metered(8)
    metered.engine.add_request(list(range(8)), greedy(1))
    metered.run()
    metered.engine.add_request([*range(8), 9], greedy(1))
    assert metered.run()[-1] == SlotSplit(tokens=9, unfilled=3, free=20)


def test_reading_may_begin_at_a_snapshot() -> None:
    metered = Metered(8)
    metered.engine.add_request([1, 2, 3, 4, 5, 6], greedy(4))
    metered.step()
    metered.read()
    metered.meter = WasteMeter(metered.picture)
    assert [split.tokens for split in metered.run()] == [7, 8, 9]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0, 20]),
    st.booleans(),
)
def test_the_events_tell_what_the_engine_has(seed: int, block_size: int, host_blocks: int, caching: bool) -> None:
    generator = random.Random(seed)
    options = {"enable_prefix_caching": caching, "max_model_len": 48, "max_num_batched_tokens": 16}
    metered = Metered(48 // block_size + 2, block_size, host_blocks, **options)
    for _ in range(8):
        prompt = generator.choices(range(2), k=generator.randint(1, 20))
        metered.engine.add_request(prompt, greedy(generator.randint(1, 20), n=generator.randint(1, 3)))
        if generator.random() < 0.5:
            metered.step()
    splits = metered.run()
    assert [(split.allocated, split.tokens) for split in splits] == metered.seen
    assert all(min(split.reservation, split.unfilled, split.free) >= 0 for split in splits)
    assert metered.meter.most_unfilled <= block_size - 1
    assert {split.total for split in splits} == {metered.picture.num_blocks * block_size}
    assert sum_of(metered.meter.steps()).external == 0
