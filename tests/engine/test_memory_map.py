"""What MemoryMap remembers of a block's age and of when it was last read, on a run of the engine without a model."""

from scripted import scripted_engine

from pagelens.engine import Engine, SamplingParams
from pagelens.engine.events import BlockState
from pagelens.engine.memory_map import MemoryMap


def run_until_finished(engine: Engine) -> MemoryMap:
    while engine.has_work:
        engine.step()
    return engine.log.snapshot()


def test_a_block_is_as_old_as_the_step_that_allocated_it() -> None:
    engine = scripted_engine(num_blocks=8, block_size=4)
    engine.add_request([1] * 6, SamplingParams(max_tokens=6))
    for _ in range(4):
        engine.step()
    picture = engine.log.snapshot()
    first, second, third = picture.sequences["A.0"].table
    assert (picture.allocated_in[first], picture.allocated_in[second]) == (0, 0)
    assert picture.allocated_in[third] == 3  # position 8 is written in the fourth step, which is step 3


def test_who_runs_reads_all_its_blocks_in_every_step() -> None:
    engine = scripted_engine(num_blocks=16, block_size=4)
    engine.add_request([1] * 6, SamplingParams(max_tokens=3))
    engine.add_request([2] * 6, SamplingParams(max_tokens=9))
    for _ in range(5):
        engine.step()
    picture = engine.log.snapshot()
    assert picture.step == 4
    assert picture.sequences["B.0"].last_step == 4
    assert picture.sequences["A.0"].last_step == 2


def test_a_cached_block_keeps_the_step_of_its_last_reader_and_an_evicted_one_forgets() -> None:
    engine = scripted_engine(num_blocks=4, block_size=4)
    engine.add_request([1] * 6, SamplingParams(max_tokens=3))
    picture = run_until_finished(engine)
    cached = picture.state.index(BlockState.CACHED)
    assert picture.read_in[cached] == 2
    assert all(block in picture.allocated_in for block in range(4) if picture.state[block] != BlockState.BLANK)

    engine.add_request([2] * 13, SamplingParams(max_tokens=1))
    later = run_until_finished(engine)
    assert later.totals["BlockEvicted"] > 0
    assert later.allocated_in.get(cached, 99) > 2
    blank = [block for block in range(4) if later.state[block] == BlockState.BLANK]
    assert not {*later.allocated_in, *later.read_in} & {*blank}


def test_a_block_that_another_sequence_still_holds_was_read_by_the_one_that_left() -> None:
    engine = scripted_engine(num_blocks=16, block_size=4)
    engine.add_request([1] * 9, SamplingParams(max_tokens=2))
    engine.step()
    engine.add_request([1] * 9, SamplingParams(max_tokens=6))  # shares the two full blocks
    engine.step()
    engine.step()
    picture = engine.log.snapshot()
    shared = picture.sequences["B.0"].table[0]
    assert picture.sequences["A.0"].status == "finished"
    assert picture.ref_count[shared] == 1
    assert picture.read_in[shared] == 1
