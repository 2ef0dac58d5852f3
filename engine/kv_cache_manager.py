"""KVCacheManager: everything the scheduler may ask of the block tables.

    find_cached_prefix   which sealed blocks can this sequence start from?
    admit                give it a table that begins with them
    blocks_to_reserve    how many more blocks would these tokens take?
    reserve              take them; copy-on-write where a shared block would be written; seal what gets full
    fork                 a second table over the same blocks
    free                 give a table back, last block first

All of it happens on paper, at plan time: the moves and copies returned are carried out at the start of the launch.
"""

import warnings
from typing import NamedTuple

from . import events as ev
from .block_pool import BlockPool
from .block_table import BlockTable, blocks_needed, on_host
from .event_log import EventLog
from .events import Why
from .policies import Policy
from .prefix_cache import PrefixCache, chain_hash, salt_hash
from .request import Sequence


class BlockCopy(NamedTuple):
    """A whole block to be copied, all layers, before anything is written: within a pool, or between the two."""

    source: int
    destination: int


class KVCacheManager:
    """A pool on the device and one on the host, one table per admitted sequence, one prefix cache.

    `tables[name]` exists from admission to release, also while swapped out. The events of a swap tell the whole of it,
    so the host pool itself emits none. With `enable_prefix_caching` off nothing is sealed, so nothing is
    ever found and every released block turns blank.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool,
        policy: Policy,
        log: EventLog,
        num_host_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks, log)
        self.host_pool = BlockPool(num_host_blocks, EventLog(log.header, enabled=False))
        self.cache = PrefixCache(block_size)
        self.tables: dict[str, BlockTable] = {}
        self._hashes: dict[str, list[str]] = {}
        self._sealed_in_step: list[int] = []
        self._policy = policy
        self._log = log

    def begin_step(self) -> None:
        """Forget which blocks the last step sealed: it has been committed."""
        self._sealed_in_step.clear()

    def find_cached_prefix(self, sequence: Sequence) -> list[int]:
        """The sealed blocks that hold the longest proper prefix of the sequence's tokens."""
        if not self.enable_prefix_caching:
            return []
        return [sealed.block for sealed in self.cache.lookup(sequence.token_ids, self._block_hashes(sequence))]

    def free_after_sharing(self, blocks: list[int]) -> int:
        """Free blocks that remain once `blocks`, some of them cached and thus free now, are in use."""
        return self.pool.num_free - sum(self.pool.ref_count[block] == 0 for block in blocks)

    def admit(self, sequence: Sequence, cached_prefix: list[int], cause: int) -> None:
        """Open the sequence's table with the blocks of its cached prefix, which count as computed."""
        table = self.tables[sequence.name] = BlockTable(cached_prefix)
        for index, block in enumerate(table):
            self.pool.share(block, sequence.name, index, Why.PREFIX_HIT, cause)

    def blocks_to_reserve(self, sequence: Sequence, num_tokens: int) -> int:
        """Free blocks that the next `num_tokens` tokens take: the table's growth, and a copy if one is due."""
        table = self.tables[sequence.name]
        growth = blocks_needed(sequence.num_computed_tokens + num_tokens, self.block_size) - len(table)
        return growth + (self._shared_block_to_write(sequence) is not None)

    def reserve(self, sequence: Sequence, num_tokens: int, cause: int) -> list[BlockCopy]:
        """Make the slots of the next `num_tokens` tokens writable and return the copies due before they are written.

        Copy-on-write is lazy (PagedAttention paper, section 4.4): a block is copied when a holder is about to write
        into it, and the last holder writes in place. Raises IndexError if fewer than `blocks_to_reserve` are free.
        """
        name, start = sequence.name, sequence.num_computed_tokens
        table = self.tables[name]
        copies: list[BlockCopy] = []
        index = self._shared_block_to_write(sequence)
        if index is not None:
            source = table[index]
            table[index] = self.take_block(name, index, Why.SHARED_BLOCK, cause)
            copies.append(BlockCopy(source, table[index]))
            copied = self._log.emit(
                ev.BlockCopied,
                Why.SHARED_BLOCK,
                cause,
                source=source,
                destination=table[index],
                sequence=name,
                index=index,
            )
            self.pool.release(source, name, index, source in self.cache.by_block, Why.COPIED_AWAY, copied)
        for index in range(len(table), blocks_needed(start + num_tokens, self.block_size)):
            table.append(self.take_block(name, index, Why.TABLE_GROWS, cause))
        if self.enable_prefix_caching:
            self._seal_full_blocks(sequence, start, start + num_tokens, cause)
        return copies

    def fork(self, parent: Sequence, child: Sequence, why: Why, cause: int) -> None:
        """Give `child` a table of its own over all of the parent's blocks, the partial last one included."""
        table = self.tables[child.name] = BlockTable(self.tables[parent.name])
        for index, block in enumerate(table):
            self.pool.share(block, child.name, index, why, cause)
        child.num_computed_tokens = parent.num_computed_tokens
        if parent.name in self._hashes:
            self._hashes[child.name] = list(self._hashes[parent.name])

    def free(self, sequence: Sequence, why: Why, cause: int) -> None:
        """Give the sequence's blocks back, last one first, so that the tail of a chain is evicted before its head."""
        table = self.tables.pop(sequence.name, BlockTable())
        host_blocks = []
        for index in range(len(table) - 1, -1, -1):
            block = table[index]
            if block < 0:
                host_blocks.append(on_host(block))
                self.host_pool.release(on_host(block), sequence.name, index, False, why, cause)
            else:
                self.pool.release(block, sequence.name, index, block in self.cache.by_block, why, cause)
        if host_blocks:
            self._log.emit(ev.HostBlocksFreed, why, cause, sequence=sequence.name, host_blocks=host_blocks)
        if sequence.finish_reason is not None:
            self._hashes.pop(sequence.name, None)

    def reset_prefix_cache(self) -> int:
        """Make no block addressable any more: cached ones turn blank, used ones are unsealed. Returns how many."""
        count = len(self.cache.by_block)
        for block in list(self.pool.cached):
            self.pool.evict(block, self.cache.forget(block).hash, Why.CACHE_RESET, -1)
        for block in list(self.cache.by_block):
            self._log.emit(ev.BlockUnsealed, Why.CACHE_RESET, block=block, hash=self.cache.forget(block).hash)
        self._sealed_in_step.clear()
        return count

    def unseal_step(self, cause: int) -> None:
        """Take back the seals of a step that failed: what its blocks hold is not what their hashes say."""
        for block in self._sealed_in_step:
            sealed = self.cache.forget(block)
            self._log.emit(ev.BlockUnsealed, Why.STEP_FAILED, cause, block=block, hash=sealed.hash)
        self._sealed_in_step.clear()

    def blocks_freed_by(self, sequences: list[Sequence]) -> int:
        """Blocks that would turn free if all of `sequences` gave their tables back."""
        held: dict[int, int] = {}
        for sequence in sequences:
            for block in self.tables[sequence.name]:
                held[block] = held.get(block, 0) + 1
        return sum(count == self.pool.ref_count[block] for block, count in held.items())

    def take_block(self, name: str, index: int, why: Why, cause: int) -> int:
        """A block for entry `index` of a table: a blank one, or one that is evicted for it."""
        if not self.pool.blank:
            self._evict(cause)
        return self.pool.allocate(name, index, why, cause)

    def _shared_block_to_write(self, sequence: Sequence) -> int | None:
        """Logical index of the block that the next token goes into, if other tables hold it too."""
        table = self.tables[sequence.name]
        index = sequence.num_computed_tokens // self.block_size
        return index if index < len(table) and self.pool.ref_count[table[index]] > 1 else None

    def _evict(self, cause: int) -> None:
        cached = self.pool.cached.keys()
        block = self._policy.choose_eviction(cached)
        oldest = next(iter(cached))
        if block not in cached:
            warnings.warn(
                f"the policy chose to evict block {block}, which is not cached; the oldest goes", stacklevel=2
            )
            block = oldest
        why = Why.LEAST_RECENTLY_USED if block == oldest else Why.POLICY
        self.pool.evict(block, self.cache.forget(block).hash, why, cause)

    def _seal_full_blocks(self, sequence: Sequence, start: int, end: int, cause: int) -> None:
        first, last = start // self.block_size, end // self.block_size
        if first == last:
            return
        table, hashes = self.tables[sequence.name], self._block_hashes(sequence)
        for index in range(first, last):
            block, parent = table[index], hashes[index - 1] if index else salt_hash(sequence.request.cache_salt)
            tokens = sequence.token_ids[index * self.block_size : (index + 1) * self.block_size]
            if self.cache.seal(block, hashes[index], parent, tokens):
                self._sealed_in_step.append(block)
                self._log.emit(
                    ev.BlockSealed,
                    Why.BLOCK_FULL,
                    cause,
                    block=block,
                    sequence=sequence.name,
                    index=index,
                    hash=hashes[index],
                    parent=parent,
                )

    def _block_hashes(self, sequence: Sequence) -> list[str]:
        """Chained hashes of the sequence's full blocks, extended by those that filled up since the last call.

        The chain begins with the request's salt, so that different salts share nothing.
        """
        hashes = self._hashes.setdefault(sequence.name, [])
        size, tokens = self.block_size, sequence.token_ids
        for index in range(len(hashes), len(tokens) // size):
            parent = hashes[-1] if hashes else salt_hash(sequence.request.cache_salt)
            hashes.append(chain_hash(parent, tokens[index * size : (index + 1) * size]))
        return hashes
