"""The trace of a launch: what the interpreter saw equals what the block table says, and shows it where it does not."""

import time
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pagelens.kernels.launch import LaunchConfig
from pagelens.kernels.walk import AttentionCall, ProgramWalk, walks_by_table

pytestmark = pytest.mark.triton

CASES = [
    pytest.param([(5, 5)], None, LaunchConfig(8, 2, 4), id="whole prompt in small tiles"),
    pytest.param([(37, 1), (16, 1), (1, 1)], None, LaunchConfig(4, 1, 16), id="decode"),
    pytest.param([(20, 1), (45, 13), (9, 9)], None, LaunchConfig(16, 4, 8), id="decode, chunk and prompt mixed"),
    pytest.param([(50, 1), (23, 9)], 11, LaunchConfig(16, 4, 8), id="a sliding window"),
    pytest.param([(90, 1), (33, 1)], None, LaunchConfig(4, 1, 8, num_splits=4), id="split"),
    pytest.param([(70, 3), (33, 20)], 30, LaunchConfig(16, 4, 4, num_splits=2), id="a sliding window, split"),
]


def call_of(batch: Any, config: LaunchConfig) -> AttentionCall:
    return AttentionCall(**batch.arguments(), config=config)


def traced(call: AttentionCall) -> tuple[Any, Tensor]:
    from pagelens.kernels.paged_attention import paged_attention
    from pagelens.kernels.trace import recording

    with recording(kv_layer=call.kv_layer, block_tables=call.block_tables) as notes:
        out = paged_attention(**{field.name: getattr(call, field.name) for field in fields(call)})
    return notes, out


def reads(walks: list[ProgramWalk]) -> Any:
    return [
        (walk.program, walk.first_position, walk.num_queries, tile.first, tile.last, tile.key_blocks, tile.value_blocks)
        for walk in walks
        for tile in walk.tiles
    ]


def softmax(walks: list[ProgramWalk]) -> list[float | None]:
    return [value for walk in walks for tile in walk.tiles for value in [*tile.running_max, *tile.running_sum]]


@pytest.mark.parametrize(("sequences", "window", "config"), CASES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_what_was_read_is_what_the_table_says(make_batch, program_order, sequences, window, config, block_size) -> None:
    from pagelens.kernels.trace import walks_read

    batch = make_batch(sequences, block_size=block_size, head_dim=24, sliding_window=window)
    call = call_of(batch, config)
    with program_order("shuffled"):
        notes, out = traced(call)
    assert not out.isnan().any()
    for row, (context, queries) in enumerate(sequences):
        for kv_head in range(2):
            read = sorted(walks_read(notes, call, row, kv_head), key=lambda walk: walk.program)
            expected = walks_by_table(call, row, kv_head)
            assert reads(read) == reads(expected)
            assert softmax(read) == pytest.approx(softmax(expected), rel=1e-4, abs=1e-5)
            lowest = 0 if window is None else max(0, context - queries - window + 1)
            table = batch.block_tables[row, lowest // block_size : -(-context // block_size)].tolist()
            assert set().union(*(walk.blocks() for walk in read)) == set(table)


def test_the_last_running_sum_is_the_denominator_of_the_softmax(make_batch) -> None:
    from pagelens.kernels.trace import walks_read

    batch = make_batch([(37, 5)], kv_heads=1, group=3)
    call = call_of(batch, LaunchConfig(16, 5, 8))
    (walk,) = walks_read(traced(call)[0], call, 0, 0)
    scores = batch.query[-1] @ batch.keys[0][:, 0].T * call.scale
    largest = scores.amax(1)
    assert walk.tiles[-1].running_max == pytest.approx(largest.tolist(), rel=1e-5)
    assert walk.tiles[-1].running_sum == pytest.approx((scores - largest[:, None]).exp().sum(1).tolist(), rel=1e-5)


def test_keys_and_values_are_told_apart_and_masked_lanes_are_left_out(make_batch) -> None:
    batch = make_batch([(6, 1)], block_size=4)
    notes, _ = traced(call_of(batch, LaunchConfig(4, 1, 16)))
    accesses = notes.accesses[0, 1, 0]
    assert [access.tensor for access in accesses] == ["block_tables", "kv_layer", "kv_layer"]
    first, second = batch.block_tables[0, :2].tolist()
    slots = [(first, 0), (first, 1), (first, 2), (first, 3), (second, 0), (second, 1)]
    assert accesses[0].lanes[:, 1].tolist() == [0, 0, 0, 0, 1, 1]
    assert [[tuple(lane) for lane in access.lanes[:, [0, 3]].tolist()] for access in accesses[1:]] == [slots, slots]
    assert [set(access.lanes[:, 1]) for access in accesses[1:]] == [{0}, {1}]
    assert [set(access.lanes[:, 2]) for access in accesses[1:]] == [{1}, {1}], "program (0, 1, 0) serves KV head 1"


def test_a_wrong_table_entry_shows(make_batch) -> None:
    """The kernel is given another table than the one that the walk is compared with."""
    from pagelens.kernels.trace import walks_read

    batch = make_batch([(40, 1), (20, 1)], block_size=4)
    call = call_of(batch, LaunchConfig(4, 1, 8))
    tables = batch.block_tables.clone()
    tables[0, 3] = tables[1, 1]
    wrong = replace(call, block_tables=tables)
    (read,), (expected,) = walks_read(traced(wrong)[0], wrong, 0, 0), walks_by_table(call, 0, 0)
    differing = [i for i, tile in enumerate(read.tiles) if tile.key_blocks != expected.tiles[i].key_blocks]
    assert differing == [1]
    assert read.tiles[1].key_blocks == read.tiles[1].value_blocks == tables[0, 2:4].tolist()


def test_stores_are_seen_too() -> None:
    from pagelens.kernels.kv_ops import write_kv
    from pagelens.kernels.trace import recording

    kv = torch.zeros(6, 3, 2, 2, 4, 8)
    slots = torch.tensor([21, 2, -1, 3])
    with recording(kv_layer=kv[:, 1]) as notes:
        write_kv(torch.ones(4, 2, 8), torch.ones(4, 2, 8), kv[:, 1], slots)
    (accesses,) = notes.accesses.values()
    assert [access.is_store for access in accesses] == [True, True]
    stored = {tuple(lane[:4]) for access in accesses for lane in access.lanes.tolist()}
    written = {(block, kv, head, slot) for block, slot in ((5, 1), (0, 2), (0, 3)) for kv in (0, 1) for head in (0, 1)}
    assert stored == written
    assert {tuple(place) for place in kv[:, 1, ..., 0].nonzero().tolist()} == written


def test_afterwards_the_interpreter_is_as_it_was() -> None:
    from triton.runtime.interpreter import interpreter_builder

    from pagelens.kernels.trace import recording

    before = dict(vars(interpreter_builder))
    with pytest.raises(ZeroDivisionError), recording():
        raise ZeroDivisionError
    assert vars(interpreter_builder) == before


def test_what_it_costs(make_batch, capsys) -> None:
    """A few percent of the launch; the bound leaves room for a busy machine."""
    from pagelens.kernels.paged_attention import paged_attention

    batch = make_batch([(250, 1)] * 4, head_dim=64, group=2)
    call = call_of(batch, LaunchConfig(2, 1, 256))
    plain, recorded = [], []
    for _ in range(7):
        started = time.perf_counter()
        paged_attention(**batch.arguments(), config=call.config)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        traced(call)
        recorded.append(time.perf_counter() - started)
    with capsys.disabled():
        print(f" {min(recorded) / min(plain) - 1:.1%} ", end="")
    assert min(recorded) < 1.5 * min(plain)
