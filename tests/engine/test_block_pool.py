"""Physical blocks: three states, one event for each change."""

import pytest

from pagelens.engine.block_pool import BlockPool
from pagelens.engine.event_log import EventLog, LogHeader
from pagelens.engine.events import BlockState, Why


@pytest.fixture
def log() -> EventLog:
    return EventLog(LogHeader(num_blocks=3, block_size=4))


@pytest.fixture
def pool(log: EventLog) -> BlockPool:
    return BlockPool(3, log)


def kinds(log: EventLog) -> list[str]:
    return [type(event).__name__ for event in log.read(0) or []]


def test_a_block_is_allocated_shared_and_released(pool: BlockPool, log: EventLog) -> None:
    block = pool.allocate("A.0", 0, Why.TABLE_GROWS, -1)
    pool.share(block, "B.0", 0, Why.PREFIX_HIT, -1)
    assert pool.ref_count[block] == 2 and pool.num_free == 2
    pool.release(block, "A.0", 0, False, Why.SEQUENCE_FINISHED, -1)
    assert pool.state(block) is BlockState.USED
    pool.release(block, "B.0", 0, False, Why.SEQUENCE_FINISHED, -1)
    assert pool.state(block) is BlockState.BLANK and pool.num_free == 3
    assert kinds(log) == ["BlockAllocated", "BlockShared", "BlockReleased", "BlockReleased"]


def test_a_sealed_block_stays_cached_and_can_be_shared_again(pool: BlockPool) -> None:
    block = pool.allocate("A.0", 0, Why.TABLE_GROWS, -1)
    pool.release(block, "A.0", 0, True, Why.SEQUENCE_FINISHED, -1)
    assert pool.state(block) is BlockState.CACHED and pool.num_free == 3
    pool.share(block, "B.0", 0, Why.PREFIX_HIT, -1)
    assert pool.state(block) is BlockState.USED and pool.num_free == 2


def test_cached_blocks_stand_in_the_order_of_their_release(pool: BlockPool) -> None:
    blocks = [pool.allocate("A.0", index, Why.TABLE_GROWS, -1) for index in range(3)]
    for index in (2, 0, 1):
        pool.release(blocks[index], "A.0", index, True, Why.SEQUENCE_FINISHED, -1)
    assert list(pool.cached) == [blocks[2], blocks[0], blocks[1]]
    pool.evict(blocks[0], "00", Why.LEAST_RECENTLY_USED, -1)
    assert pool.state(blocks[0]) is BlockState.BLANK and list(pool.blank) == [blocks[0]]


def test_only_blank_blocks_are_allocated_and_only_cached_ones_evicted(pool: BlockPool) -> None:
    blocks = [pool.allocate("A.0", index, Why.TABLE_GROWS, -1) for index in range(3)]
    with pytest.raises(IndexError):
        pool.allocate("B.0", 0, Why.TABLE_GROWS, -1)
    with pytest.raises(KeyError):
        pool.evict(blocks[0], "00", Why.LEAST_RECENTLY_USED, -1)
