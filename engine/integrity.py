"""Invariants as code: what must hold between any two phases, and that the event log tells the same story.

Tests, lessons and the lab call them after every plan and every commit.
"""

from .block_table import blocks_needed, on_host
from .engine import Engine
from .events import BlockState
from .memory_map import MemoryMap
from .request import SequenceStatus


class IntegrityError(AssertionError):
    """The engine contradicts itself: a bug in Pagelens, or in a policy that found a way around its view."""


def check_integrity(engine: Engine) -> None:
    """Raise IntegrityError, naming the first invariant that does not hold.

    blank + cached + used = total; ref_count = entries in all tables, on the device and on the host; no free block in a
    table; a table covers its sequence's computed tokens; hash index and blocks agree.
    """
    manager, scheduler = engine.manager, engine.scheduler
    pool = manager.pool
    entries = [0] * pool.num_blocks
    host_entries = [0] * manager.host_pool.num_blocks
    for table in manager.tables.values():
        for block in table:
            if block < 0:
                host_entries[on_host(block)] += 1
            else:
                entries[block] += 1
    _hold(host_entries == manager.host_pool.ref_count, "host ref_count equals the number of negative table entries")
    _hold(entries == pool.ref_count, "ref_count equals the number of table entries")
    used = sum(count > 0 for count in entries)
    _hold(len(pool.blank) + len(pool.cached) + used == pool.num_blocks, "blank + cached + used = total")
    free = set(pool.blank) | set(pool.cached)
    _hold(len(free) == pool.num_free, "a free block is free once")
    _hold(all(entries[block] == 0 for block in free), "no free block is in a table")
    cache = manager.cache
    _hold(set(pool.cached) <= set(cache.by_block), "every cached block is sealed")
    _hold(not set(pool.blank) & set(cache.by_block), "no blank block is sealed")
    _hold(len(cache.by_hash) == len(cache.by_block), "hash index and block index have the same size")
    for block, sealed in cache.by_block.items():
        _hold(sealed.block == block and cache.by_hash.get(sealed.hash) is sealed, f"hash index agrees on block {block}")
    queued = [*scheduler.waiting, *scheduler.parked]
    swapped = {s.name for s in queued if s.num_computed_tokens}
    _hold(set(manager.tables) == {s.name for s in scheduler.running} | swapped, "running and swapped-out have tables")
    for sequence in scheduler.running:
        _hold(
            all(block >= 0 for block in manager.tables[sequence.name]),
            f"{sequence.name} runs with all its blocks on the device",
        )
        covered = len(manager.tables[sequence.name])
        needed = blocks_needed(sequence.num_computed_tokens, manager.block_size)
        _hold(covered >= needed, f"the table of {sequence.name} covers its computed tokens")
        _hold(sequence.status is SequenceStatus.RUNNING, f"{sequence.name} is marked running")
    for sequence in queued:
        _hold(sequence.finish_reason is None, f"waiting {sequence.name} has not ended")


def check_map(engine: Engine, picture: MemoryMap) -> None:
    """Raise IntegrityError unless the picture rebuilt from events equals the engine's own state."""
    manager, pool = engine.manager, engine.manager.pool
    _hold(picture.ref_count == pool.ref_count, "the map's reference counts are the pool's")
    _hold(picture.state == [pool.state(b) for b in range(pool.num_blocks)], "the map's block states are the pool's")
    _hold(picture.hash == {b: s.hash for b, s in manager.cache.by_block.items()}, "the map's hashes are the cache's")
    tables = {name: view.table for name, view in picture.sequences.items() if view.table}
    _hold(tables == {name: list(t) for name, t in manager.tables.items() if t}, "the map's tables are the manager's")
    _hold(picture.count(BlockState.USED) == sum(c > 0 for c in pool.ref_count), "used blocks are counted alike")
    alive = {name: view for name, view in picture.sequences.items() if view.status != "finished"}
    scheduler = engine.scheduler
    own = {s.name: s for s in [*scheduler.running, *scheduler.waiting, *scheduler.parked]}
    _hold(alive.keys() == own.keys(), "the map knows the same unfinished sequences")
    for name, sequence in own.items():
        view = alive[name]
        _hold(view.status == sequence.status, f"the map has the status of {name}")
        _hold(view.token_ids == sequence.token_ids, f"the map has the tokens of {name}")
        _hold(view.num_computed_tokens == sequence.num_computed_tokens, f"the map has what is computed of {name}")


def _hold(condition: bool, invariant: str) -> None:
    if not condition:
        raise IntegrityError(f"does not hold: {invariant}")
