"""The traced launch of a real engine: what the kernel read is the block table, whatever the step did."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from pagelens.engine import Engine, EngineConfig, EngineLoop, PagelensError, SamplingParams
from pagelens.engine.events import KernelTraced, StepLaunched, Why
from pagelens.engine.kvtrace import decode_event, encode_event
from pagelens.engine.runner import Launch
from pagelens.kernels.launch import LaunchConfig

PROMPT = "A hacker is a person who enjoys learning the details of a computer and how to stretch its limits."
PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def make_engine(kernel: str = "triton", **options: Any) -> Engine:
    return Engine(EngineConfig(kernel=kernel, num_gpu_blocks_override=32, block_size=4, **options))


def traces(engine: Engine) -> list[KernelTraced]:
    return [event for event in engine.log.read(0) or [] if isinstance(event, KernelTraced)]


def table_of(engine: Engine, sequence: str) -> list[int]:
    return list(engine.manager.tables[sequence])


def read_by(event: KernelTraced) -> list[int]:
    """The blocks of the last program's walk, in their order; K and V alike."""
    tiles = event.programs[-1].tiles
    assert [tile.key_blocks for tile in tiles] == [tile.value_blocks for tile in tiles]
    return list(dict.fromkeys(block for tile in tiles for block in tile.key_blocks))


@pytest.mark.triton
def test_a_decode_reads_its_block_table() -> None:
    engine = make_engine()
    engine.add_request(PROMPT, PARAMS)
    engine.add_request("The system went down", PARAMS)
    engine.step()
    engine.trace_kernel("A.0", layer=1, kv_head=1, tile=16)
    launched = engine.plan()
    table = table_of(engine, "A.0")
    engine.commit(launched, engine.launch(launched))
    (event,) = traces(engine)
    context = len(engine.requests["A"].sequences[0].token_ids) - 1
    assert (event.sequence, event.layer, event.kv_head, event.tile) == ("A.0", 1, 1, 16)
    assert (event.kernel, event.taken_from, event.why) == ("triton", "interpreter", Why.USER_TRACE)
    assert (event.start, event.num_tokens, event.phase) == (context - 1, 1, "launch")
    assert read_by(event) == table and event.blocks == sorted(table)
    (walk,) = event.programs
    assert walk.program == [0, 1, 0] and walk.first_position == context - 1
    assert [tile.first for tile in walk.tiles] == list(range(0, context, 16)) and walk.tiles[-1].last == context - 1
    cause = (engine.log.read(event.cause) or [])[0]
    assert isinstance(cause, StepLaunched) and cause.grid == event.grid
    assert decode_event(encode_event(event)) == event
    engine.step()
    assert len(traces(engine)) == 1, "a wish is met once"


@pytest.mark.triton
def test_a_chunked_prefill_reads_a_shared_prefix_and_no_further_than_its_chunk() -> None:
    engine = make_engine(max_num_batched_tokens=12, max_num_seqs=2)
    engine.add_request(PROMPT, PARAMS)
    while not engine.requests["A"].sequences[0].output_token_ids:
        engine.step()
    second = engine.add_request(PROMPT + " He will often write a program in one night, and says so.", PARAMS)
    shared: list[int] = []
    while not second.sequences[0].output_token_ids:
        engine.trace_kernel("B.0", layer=0, kv_head=0, tile=16)
        plan = engine.plan()
        shared = shared or [block for block in table_of(engine, "B.0") if block in table_of(engine, "A.0")]
        table = table_of(engine, "B.0")
        engine.commit(plan, engine.launch(plan))
        event = traces(engine)[-1]
        covered = -(-(event.start + event.num_tokens) // 4)
        assert read_by(event) == table[:covered]
        assert read_by(event)[: len(shared)] == shared
    assert len(shared) >= 4, "the prefix is shared"
    assert len(traces(engine)) >= 2, "the prompt came in chunks"
    assert traces(engine)[0].start == 4 * len(shared), "and its first chunk begins behind the prefix"


@pytest.mark.triton
def test_split_contexts_are_walked_by_several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    assert engine.loaded is not None
    attention, prepare = engine.loaded.attention, engine.runner.prepare
    group = attention.num_heads // attention.num_kv_heads
    config = LaunchConfig(block_m=group, block_q=1, tile=4, num_splits=4)

    def prepare_split(plan: Any) -> Launch:
        launch = prepare(plan)
        launch.batch.metadata = replace(launch.batch.metadata, launch=config)
        launch.grid = list(config.grid(plan.num_tokens, 1, attention.num_kv_heads))
        return launch

    engine.add_request(PROMPT, PARAMS)
    engine.step()
    monkeypatch.setattr(engine.runner, "prepare", prepare_split)
    engine.trace_kernel("A.0")
    engine.step()
    (event,) = traces(engine)
    assert [walk.program for walk in event.programs] == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3]]
    assert event.grid == [2, attention.num_kv_heads, 4]
    ends = [(walk.tiles[0].first, walk.tiles[-1].last) for walk in event.programs]
    assert ends[0][0] == 0 and [b for _, b in ends[:-1]] == [a - 1 for a, _ in ends[1:]], "one after the other"
    blocks = [block for walk in event.programs for tile in walk.tiles for block in tile.key_blocks]
    assert list(dict.fromkeys(blocks)) == table_of(engine, "A.0")


@pytest.mark.triton
@pytest.mark.parametrize("tokens", [1, 9])
def test_a_sliding_window_reads_the_blocks_of_the_window_only(
    write_checkpoint: Callable[..., Path], tokens: int
) -> None:
    window = 11
    engine = make_engine(model=str(write_checkpoint("mistral-windowed")), max_num_batched_tokens=40, max_num_seqs=2)
    engine.add_request(list(range(1, 41 + tokens - 1)), PARAMS)
    engine.step()
    if tokens == 1:
        assert engine.requests["A"].sequences[0].output_token_ids
    engine.trace_kernel("A.0", layer=1, kv_head=2, tile=16)
    engine.step()
    (event,) = traces(engine)
    assert event.num_tokens == max(1, tokens - 1) and event.sliding_window == window
    lowest = event.start - window + 1
    assert read_by(event) == table_of(engine, "A.0")[lowest // 4 :]
    assert event.programs[0].tiles[0].first == lowest


@pytest.mark.triton
def test_a_wrong_table_entry_given_to_the_kernel_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    prepare = engine.runner.prepare

    def prepare_wrongly(plan: Any) -> Launch:
        launch = prepare(plan)
        launch.batch.metadata.block_tables[0, 2] = 31
        return launch

    engine.add_request(PROMPT, PARAMS)
    engine.step()
    monkeypatch.setattr(engine.runner, "prepare", prepare_wrongly)
    engine.trace_kernel("A.0", tile=16)
    engine.step()
    (event,) = traces(engine)
    table = table_of(engine, "A.0")
    assert 31 not in table and table[2] not in event.blocks
    assert read_by(event) == [*table[:2], 31, *table[3:]]


@pytest.mark.triton
@pytest.mark.parametrize("compiled", ["torch", "numba"])
def test_derived_and_read_are_the_same_walk(compiled: str) -> None:
    if compiled == "numba":
        pytest.importorskip("numba")

    def run(kernel: str) -> KernelTraced:
        engine = make_engine(kernel)
        engine.add_request(PROMPT, PARAMS)
        engine.step()
        engine.trace_kernel("A.0", layer=1, tile=16)
        engine.step()
        return traces(engine)[0]

    read, derived = run("triton"), run(compiled)
    assert (derived.kernel, derived.taken_from) == (compiled, "block_table")
    assert derived.blocks == read.blocks and derived.block_m == 0
    for one, other in zip(read.programs[0].tiles, derived.programs[0].tiles, strict=True):
        assert (one.first, one.last, one.key_blocks) == (other.first, other.last, other.key_blocks)
        assert one.running_max == pytest.approx(other.running_max, rel=1e-4)
        assert one.running_sum == pytest.approx(other.running_sum, rel=1e-4)


@pytest.mark.triton
def test_a_model_that_brings_its_own_code_is_traced_too(tmp_path: Path) -> None:
    """Every layer of it has an attention of its own."""
    shape = {"vocab_size": 99, "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 64, "initializer_range": 0.2}
    GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None)).save_pretrained(tmp_path)
    engine = make_engine(model=str(tmp_path))
    engine.add_request(list(range(20)), PARAMS)
    engine.step()
    engine.trace_kernel("A.0", layer=2, kv_head=1, tile=16)
    engine.step()
    (event,) = traces(engine)
    assert event.taken_from == "interpreter" and read_by(event) == table_of(engine, "A.0")


@pytest.mark.triton
def test_tracing_changes_no_token() -> None:
    def run(trace: bool) -> list[int]:
        engine = make_engine()
        request = engine.add_request(PROMPT, PARAMS)
        while engine.has_work:
            if trace:
                engine.trace_kernel("A.0", layer=1, tile=16)
            engine.step()
        assert len(traces(engine)) == (6 if trace else 0)
        return request.sequences[0].output_token_ids

    assert run(True) == run(False)


def test_a_long_walk_is_cut_to_its_newest_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    from pagelens.engine.kernel_trace import _newest
    from pagelens.kernels.walk import ProgramWalk, TileRead

    monkeypatch.setattr("pagelens.engine.kernel_trace.MOST_TILES", 5)
    tile = TileRead(0, 1, [1], [1], [0.0], [1.0])
    walks = [ProgramWalk([i], 0, 1, [tile] * count) for i, count in enumerate((3, 2, 3))]
    assert [walk.program for walk in _newest(walks)] == [[1], [2]]
    assert [walk.program for walk in _newest([ProgramWalk([0], 0, 1, [tile] * 9)])] == [[0]]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"sequence": "B.0"}, "there is no unfinished sequence 'B.0'; there are: A.0"),
        ({"sequence": "A.0", "layer": 2}, "layer is 2, but the model has 2: allowed is 0 to 1"),
        ({"sequence": "A.0", "layer": -1}, "layer is -1"),
        ({"sequence": "A.0", "kv_head": 9}, "kv_head is 9, but the model has"),
        ({"sequence": "A.0", "tile": 17}, "tile is 17, allowed is 16, 32"),
    ],
)
def test_what_cannot_be_traced_is_refused(wish: dict[str, Any], words: str) -> None:
    engine = make_engine("torch")
    engine.add_request(PROMPT, PARAMS)
    with pytest.raises(PagelensError) as refused:
        engine.trace_kernel(**wish)
    assert words in str(refused.value)


def test_a_halted_step_is_traced_when_it_goes_on() -> None:
    loop = EngineLoop(make_engine("torch")).start()
    try:
        loop.halt()
        loop.submit(PROMPT, PARAMS)
        loop.next_phase()
        assert loop.halted_after == "plan"
        loop.trace_kernel("A.0", kv_head=1)
        loop.next_phase()
        (event,) = traces(loop.engine)
        assert event.tile == 0 and len(event.programs[0].tiles) == 1, "torch gathers all keys at once"
        assert event.blocks == sorted(table_of(loop.engine, "A.0"))
    finally:
        loop.stop()


def test_a_scripted_engine_has_no_kernel() -> None:
    from scripted import scripted_engine

    engine = scripted_engine()
    engine.add_request([1, 2, 3], SamplingParams())
    with pytest.raises(PagelensError, match="runs no kernel"):
        engine.trace_kernel("A.0")
