"""Swap: a preempted sequence's blocks wait in the host pool instead of being computed again.

    block table of B.0        before   [ 3,  7,  9]        block 3 is shared with A.0
                              out      [ 3, -1, -2]        7 -> host 0, 9 -> host 1; B.0 keeps its reference to 3
                              back     [ 3,  4,  7]        host 0 -> 4, host 1 -> 7

Only blocks that no other table holds move: a shared one frees nothing. PagedAttention paper (SOSP 2023), section 4.5.
"""

from . import events as ev
from .block_table import blocks_needed, on_host
from .event_log import EventLog
from .events import Why
from .kv_cache_manager import BlockCopy, KVCacheManager
from .request import Sequence


class Swap:
    """Moves blocks between the manager's two pools, on paper; the moves it returns are made by the launch."""

    def __init__(self, manager: KVCacheManager, log: EventLog) -> None:
        self._manager = manager
        self._log = log

    def can_swap_out(self, sequences: list[Sequence]) -> bool:
        """Whether the host pool has room for the blocks that only these sequences' tables hold, one entry each."""
        manager = self._manager
        tables = [manager.tables[sequence.name] for sequence in sequences]
        count = sum(manager.pool.ref_count[block] == 1 for table in tables for block in table)
        return 0 < count <= manager.host_pool.num_free

    def swap_out(self, sequence: Sequence, cause: int) -> list[BlockCopy]:
        """Point the entries of unshared blocks to the host pool. Returns the moves, device to host."""
        manager, name = self._manager, sequence.name
        table = manager.tables[name]
        indices = [index for index, block in enumerate(table) if manager.pool.ref_count[block] == 1]
        moves = [
            BlockCopy(table[index], manager.host_pool.allocate(name, index, Why.SWAPPED_OUT, cause))
            for index in indices
        ]
        swapped = self._log.emit(
            ev.BlocksSwappedOut,
            Why.OUT_OF_BLOCKS,
            cause,
            sequence=name,
            indices=indices,
            blocks=[move.source for move in moves],
            host_blocks=[move.destination for move in moves],
        )
        for index, (block, host_block) in reversed(list(zip(indices, moves, strict=True))):
            table[index] = on_host(host_block)
            manager.pool.release(block, name, index, block in manager.cache.by_block, Why.SWAPPED_OUT, swapped)
        return moves

    def blocks_to_swap_in(self, sequence: Sequence) -> int:
        """Free blocks that resuming a swapped-out sequence takes: its host blocks, and room for all its tokens."""
        table = self._manager.tables[sequence.name]
        growth = blocks_needed(sequence.num_tokens, self._manager.block_size) - len(table)
        return growth + sum(block < 0 for block in table)

    def swap_in(self, sequence: Sequence, cause: int) -> list[BlockCopy]:
        """Bring the sequence's host blocks back. Returns the moves, host to device."""
        manager, name = self._manager, sequence.name
        table = manager.tables[name]
        indices = [index for index, block in enumerate(table) if block < 0]
        moves = []
        for index in indices:
            host_block = on_host(table[index])
            table[index] = manager.take_block(name, index, Why.SWAPPED_IN, cause)
            manager.host_pool.release(host_block, name, index, False, Why.SWAPPED_IN, cause)
            moves.append(BlockCopy(host_block, table[index]))
        self._log.emit(
            ev.BlocksSwappedIn,
            Why.FITS,
            cause,
            sequence=name,
            indices=indices,
            blocks=[move.destination for move in moves],
            host_blocks=[move.source for move in moves],
        )
        return moves
