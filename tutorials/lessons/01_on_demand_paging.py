"""Lesson 1: on-demand paging. From forty lines that store keys and values in blocks to the engine.

python tutorials/lessons/01_on_demand_paging.py [--pictures DIR]
"""

from dataclasses import dataclass
from functools import cache

import torch
from pictures import memory
from telling import tell
from torch import Tensor

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.event_log import EventLog
from pagelens.engine.events import Event
from pagelens.engine.memory_map import MemoryMap

HEAD_DIM = 8
LENGTHS = {"A": 5, "B": 9, "C": 3, "D": 6}
"""How long four texts turn out. Nobody knows that when they start."""


class OutOfBlocks(RuntimeError):
    """A sequence needs a block and none is free."""


class PagedKVCache:
    """Keys and values of many sequences (one layer, one head) in equal blocks."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size = block_size
        self.keys = torch.zeros(num_blocks, block_size, head_dim)
        self.values = torch.zeros(num_blocks, block_size, head_dim)
        self.free_blocks = list(range(num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def allocate_sequence(self, name: str) -> None:
        """Begin a sequence. It has a table now, and no block."""
        self.tables[name], self.lengths[name] = [], 0

    def append_token(self, name: str, key: Tensor, value: Tensor) -> None:
        """Store one more token; take a block if the last one is full."""
        table, position = self.tables[name], self.lengths[name]
        index, offset = divmod(position, self.block_size)
        if index == len(table):
            if not self.free_blocks:
                raise OutOfBlocks(
                    f"{name} needs a block for position {position}, but all "
                    f"{len(self.keys)} are in use: free a sequence"
                )
            table.append(self.free_blocks.pop(0))
        self.keys[table[index], offset] = key
        self.values[table[index], offset] = value
        self.lengths[name] += 1

    def get_keys_values(self, name: str) -> tuple[Tensor, Tensor]:
        """All keys and values in order of position, gathered through the table."""
        blocks, length = torch.tensor(self.tables[name]), self.lengths[name]
        keys, values = self.keys[blocks].flatten(0, 1), self.values[blocks].flatten(0, 1)
        return keys[:length], values[:length]

    def free_sequence(self, name: str) -> None:
        """Give the sequence's blocks back."""
        self.free_blocks += self.tables.pop(name)
        del self.lengths[name]


GREW_INTO = [
    ("self.keys = torch.zeros(", "engine/kv_cache.py", "KVCache", "all layers and heads of a block in one slab"),
    ("self.free_blocks = list(", "engine/block_pool.py", "BlockPool", "reference counts, a third state: cached"),
    ("self.tables: dict[", "engine/block_table.py", "BlockTable", "the slots of many positions at once"),
    ("if index == len(table):", "engine/block_table.py", "blocks_needed", "computed once, for any number of tokens"),
    ("table.append(", "engine/kv_cache_manager.py", "reserve", "done in the plan, before any byte moves"),
    ("raise OutOfBlocks(", "engine/preemption.py", "make_room", "another request gives way; nothing crashes"),
    ("self.keys[table[index], offset] = key", "kernels/kv_ops.py", "write_kv", "all tokens of a step in one launch"),
    ("self.keys[blocks].flatten(0, 1)", "kernels/paged_attention.py", "paged_attention", "no gathered copy is made"),
    ("self.free_blocks += ", "engine/kv_cache_manager.py", "free", "last block first; what others hold stays"),
]
"""A piece of PagedKVCache, the file and name that it became, and what is new there."""


def contiguous() -> tuple[int, int]:
    """One piece of memory for each text

    Returns (slots with a token, slots reserved).
    """
    slots, longest = 48, 16
    started, waiting = list(LENGTHS)[: slots // longest], list(LENGTHS)[slots // longest :]
    used, reserved = sum(LENGTHS[name] for name in started), longest * len(started)
    print(f"{slots} slots; a text may have {longest} tokens, so each reserves {longest}.")
    print(f"{', '.join(started)} start, {', '.join(waiting)} waits: no piece of {longest} is left.")
    print(f"In the end {used} of {reserved} reserved slots hold a token: {used / reserved:.0%}.")
    return used, reserved


@cache
def filled_cache() -> PagedKVCache:
    """The four texts in 12 blocks of 4, written a token at a time in turn."""
    cache = PagedKVCache(num_blocks=12, block_size=4, head_dim=HEAD_DIM)
    generator = torch.Generator().manual_seed(0)
    for name in LENGTHS:
        cache.allocate_sequence(name)
    for position in range(max(LENGTHS.values())):
        for name, length in LENGTHS.items():
            if position < length:
                key, value = torch.randn(2, HEAD_DIM, generator=generator)
                cache.append_token(name, key, value)
    return cache


def paged() -> tuple[int, int]:
    """The same 48 slots as 12 blocks of 4

    Returns (slots with a token, slots in blocks taken).
    """
    cache = filled_cache()
    for name, table in cache.tables.items():
        empty = len(table) * cache.block_size - cache.lengths[name]
        print(f"{name}: {cache.lengths[name]} tokens, table {table}, {empty} empty slots in its last block")
    used = sum(cache.lengths.values())
    taken = sum(map(len, cache.tables.values())) * cache.block_size
    print(f"All four run. {used} of {taken} slots taken hold a token: {used / taken:.0%}.")
    print(f"{len(cache.free_blocks)} blocks are free for a fifth: {cache.free_blocks}.")
    return used, taken


def attention_does_not_notice() -> float:
    """Attention over scattered blocks

    Returns the largest difference from attention over one dense array.
    """
    cache = filled_cache()
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(HEAD_DIM, generator=generator)
    keys, values = cache.get_keys_values("B")
    dense = (query @ keys.T / HEAD_DIM**0.5).softmax(-1) @ values
    scores = torch.empty(cache.lengths["B"])
    for position in range(cache.lengths["B"]):
        index, offset = divmod(position, cache.block_size)
        scores[position] = query @ cache.keys[cache.tables["B"][index], offset] / HEAD_DIM**0.5
    weights, walked = scores.softmax(-1), torch.zeros(HEAD_DIM)
    for position, weight in enumerate(weights):
        index, offset = divmod(position, cache.block_size)
        walked += weight * cache.values[cache.tables["B"][index], offset]
    difference = (dense - walked).abs().max().item()
    print(f"B lies in blocks {cache.tables['B']}. Walking the table slot by slot instead of gathering")
    print(f"first changes the output of attention by at most {difference:.1e}.")
    return difference


def exhaustion() -> str:
    """When no block is left

    Returns the message.
    """
    cache = PagedKVCache(num_blocks=3, block_size=4, head_dim=HEAD_DIM)
    zero = torch.zeros(HEAD_DIM)
    cache.allocate_sequence("A")
    cache.allocate_sequence("B")
    message = ""
    try:
        while True:
            cache.append_token("A", zero, zero)
            cache.append_token("B", zero, zero)
    except OutOfBlocks as error:
        message = str(error)
    print(f"OutOfBlocks: {message}")
    cache.free_sequence("B")
    cache.append_token("A", zero, zero)
    print(f"After free_sequence('B') A goes on: table {cache.tables['A']}, free {cache.free_blocks}.")
    return message


@dataclass
class Run:
    """A run of the engine. `freed` are the first text's blocks, `heirs` who took them over, and as which entry."""

    log: EventLog
    events: list[Event]
    tables: dict[str, list[int]]
    freed: list[int]
    heirs: list[tuple[int, str, int]]
    together: MemoryMap
    reused: MemoryMap


@cache
def engine_run() -> Run:
    """Three texts of the embedded model in 11 blocks of 4; a fourth comes when the first has ended."""
    config = EngineConfig(kernel="torch", block_size=4, num_gpu_blocks_override=11, enable_prefix_caching=False)
    engine = Engine(config)
    prompts = [("A hacker is", 6), ("When a program", 14), ("The word", 12), ("Real programmers do not", 8)]
    requests = [(prompt, SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)) for prompt, count in prompts]
    engine.add_requests(requests[:3])
    while len(engine.requests) == 3:
        together = engine.log.snapshot()
        engine.step()
    engine.add_requests(requests[3:])
    while engine.has_work:
        engine.step()

    events = engine.log.read(0) or []
    allocations = [event for event in events if isinstance(event, ev.BlockAllocated)]
    tables: dict[str, list[int]] = {}
    for event in allocations:
        tables.setdefault(event.sequence, []).append(event.block)
    given_back = [event for event in events if isinstance(event, ev.BlockReleased) and event.sequence == "A.0"]
    freed = [event.block for event in given_back]
    again = [event for event in allocations if event.block in freed and event.seq > given_back[0].seq]
    after = next(e.seq for e in events if isinstance(e, ev.TokensWritten) and e.step == again[-1].step)
    heirs = [(event.block, event.sequence, event.index) for event in again]
    return Run(engine.log, events, tables, freed, heirs, together, engine.log.snapshot(after))


def in_the_engine() -> Run:
    """The same in the engine, with a model

    Returns the run.
    """
    run = engine_run()
    allocations = [event for event in run.events if isinstance(event, ev.BlockAllocated)]
    for name, table in run.tables.items():
        steps = [event.step for event in allocations if event.sequence == name]
        print(f"{name}: blocks {table}, taken in steps {steps}")
    print(f"A.0 gave {run.freed} back when it ended.")
    for block, name, index in run.heirs:
        print(f"Block {block} is now entry {index} of {name}'s table.")
    print(f"Reason of all {len(allocations)} allocations: {', '.join({event.why for event in allocations})}.")
    return run


def what_became_of_it() -> None:
    """Which line became which file"""
    for line, file, name, added in GREW_INTO:
        print(f"{line}\n    -> {file}: {name} ({added})")


def three_texts() -> str:
    """The memory just before the first text ends."""
    picture = engine_run().together
    title = f"Three block tables, and {picture.num_blocks} physical blocks of 4 slots with the tokens in them."
    return memory(picture, title)


def after_reuse() -> str:
    """The memory when a fourth text runs in blocks of the first."""
    return memory(engine_run().reused, "The same pool later: the fourth text lies in blocks that the first gave back.")


PARTS = [contiguous, paged, attention_does_not_notice, exhaustion, in_the_engine, what_became_of_it]
PICTURES = [three_texts, after_reuse]

if __name__ == "__main__":
    tell(PARTS, PICTURES)
