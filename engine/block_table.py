"""BlockTable: where a sequence's tokens lie, logical block to physical block.

    block_size 4      position   0 1 2 3 | 4 5 6 7 | 8 9 . .
                 logical block      0    |    1    |    2
                physical block      7    |    1    |    3
    slot of position 9 = 3 * 4 + 9 % 4 = 13

PagedAttention paper (SOSP 2023), section 4.2.
"""

import numpy as np


def on_host(block: int) -> int:
    """Table entry for a host block, and back: -1 - block. Negative entries are swapped out."""
    return -1 - block


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens. The one place where this boundary is computed."""
    return -(-num_tokens // block_size)


class BlockTable(list[int]):
    """The physical block ids of one sequence, in logical order; append-only but for copy-on-write, swap and release.

    A negative entry is a block of the host pool (`on_host`); a sequence with one cannot run.
    """

    __slots__ = ()

    def slots(self, start: int, count: int, block_size: int) -> np.ndarray:
        """Slots (int64, block * block_size + offset) of `count` positions from `start` on."""
        positions = np.arange(start, start + count)
        return np.asarray(self, dtype=np.int64)[positions // block_size] * block_size + positions % block_size
