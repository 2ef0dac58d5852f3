"""BlockPool: the physical blocks and their three states.

                 allocate                       share (ref_count + 1)
     +-------+ -----------------> +------+ <---------------------------+
     | blank |                    | used | --- release (ref_count > 0)-+
     +-------+ <----------------- +------+
         ^    release, not sealed   |  ^
         |                  release,|  | share: a prefix hit
         |                  sealed  v  |
         |                        +--------+
         +----------------------- | cached |  least recently used first
                  evict           +--------+

Free = blank + cached. Every change of state happens in one of these methods, is O(1), and emits exactly one event.
Reference counting of blocks: PagedAttention paper (SOSP 2023), section 4.3; the free list that doubles as an LRU cache
of still addressable blocks: vLLM's automatic prefix caching.
"""

from collections import OrderedDict, deque

from . import events as ev
from .event_log import EventLog
from .events import BlockState, Why


class BlockPool:
    """`num_blocks` blocks of equal size, all blank at first. It knows references; tokens are the tables' matter.

    `ref_count[block]` is the number of block table entries that point to the block.
    """

    def __init__(self, num_blocks: int, log: EventLog) -> None:
        self.num_blocks = num_blocks
        self.ref_count = [0] * num_blocks
        self.blank: deque[int] = deque(range(num_blocks))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self._log = log

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated: blank ones, and cached ones by eviction."""
        return len(self.blank) + len(self.cached)

    def state(self, block: int) -> BlockState:
        """The state of one block."""
        if self.ref_count[block]:
            return BlockState.USED
        return BlockState.CACHED if block in self.cached else BlockState.BLANK

    def allocate(self, sequence: str, index: int, why: Why, cause: int) -> int:
        """Give a blank block to entry `index` of a sequence's table. Raises IndexError if none is blank."""
        block = self.blank.popleft()
        self.ref_count[block] = 1
        self._emit(ev.BlockAllocated, block, sequence, index, why, cause)
        return block

    def share(self, block: int, sequence: str, index: int, why: Why, cause: int) -> None:
        """Let entry `index` of one more table point to a block that is used or cached."""
        if self.ref_count[block] == 0:
            del self.cached[block]
        self.ref_count[block] += 1
        self._emit(ev.BlockShared, block, sequence, index, why, cause)

    def release(self, block: int, sequence: str, index: int, sealed: bool, why: Why, cause: int) -> None:
        """Take one table entry's reference back; with the last one a sealed block stays cached, another turns blank."""
        self.ref_count[block] -= 1
        if self.ref_count[block] == 0:
            if sealed:
                self.cached[block] = None
            else:
                self.blank.append(block)
        self._emit(ev.BlockReleased, block, sequence, index, why, cause)

    def evict(self, block: int, hash: str, why: Why, cause: int) -> None:
        """Turn a cached block blank. Raises KeyError if it is not cached."""
        del self.cached[block]
        self.blank.append(block)
        self._log.emit(ev.BlockEvicted, why, cause, block=block, hash=hash, state=BlockState.BLANK)

    def _emit(self, kind: type[ev.Event], block: int, sequence: str, index: int, why: Why, cause: int) -> None:
        count, state = self.ref_count[block], self.state(block)
        self._log.emit(kind, why, cause, block=block, sequence=sequence, index=index, ref_count=count, state=state)
