"""Each kernel of the ladder against the oracle, in any order of its programs, and what it does against what is counted."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_batches import error, make_batch, program_order

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tutorials/kernels"))

import ladder
from batches import random_call, token_by_token
from door import small_tiles
from roofline import H100, Shape, Work, floor

from pagelens.kernels import reference
from pagelens.kernels.launch import LaunchConfig
from pagelens.kernels.trace import recording, walks_read
from pagelens.kernels.walk import AttentionCall, walks_by_table

__all__ = ["error", "make_batch", "program_order"]

pytestmark = pytest.mark.triton

LADDER = ["one_head", "grouped_heads", "any_query_length", "split_context"]
MIXED = [(40, 11), (23, 1), (33, 33), (1, 1)]
DECODE = [(40, 1), (1, 1), (70, 1)]


def call_of(batch: Any, dtype: torch.dtype = torch.float32) -> AttentionCall:
    """Keys and values in a layer of their own, since the ladder's kernels take no strides."""
    arguments = batch.arguments(dtype)
    return AttentionCall(**arguments | {"kv_layer": arguments["kv_layer"].contiguous()})


def fit(name: str, call: AttentionCall) -> AttentionCall:
    return token_by_token(call) if ladder.STEPS[name].decode_only else call


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("name", ladder.STEPS)
def test_equals_the_oracle(make_batch, program_order, error, name, group, order) -> None:
    """Prompts, a chunk and decodes mixed, in a cache whose every other slot is NaN."""
    for block_size, dtype, limit in ((16, torch.float32, 1e-5), (4, torch.float16, 1e-3)):
        batch = make_batch(MIXED, block_size=block_size, group=group, dtype=dtype, head_dim=32)
        call = call_of(batch, dtype)
        with program_order(order):
            result = ladder.STEPS[name].attend(fit(name, call))
        assert error(result, reference.paged_attention(**batch.arguments(torch.float32))) < limit


@pytest.mark.parametrize("num_splits", [1, 2, 16])
def test_splits_merge_to_the_oracle(make_batch, error, num_splits) -> None:
    batch = make_batch([(300, 1), (20, 1), (64, 1)])
    call = replace(call_of(batch), config=replace(small_tiles(4, num_splits), tile=16))
    result = ladder.STEPS["split_context"].attend(call)
    assert error(result, reference.paged_attention(**batch.arguments())) < 1e-5


MUTATIONS = {
    "one_head": [
        ("the last block is used to its end", "index * BLOCK_SIZE + slot < context", "slot < BLOCK_SIZE"),
        ("every block is the first", "seq * max_blocks + index)", "seq * max_blocks)"),
        ("old values are not scaled down", "acc * shrink", "acc"),
    ],
    "grouped_heads": [
        ("padding rows are stored", "row_used = row < GROUP", "row_used = row < BLOCK_M"),
        ("the last tile reads past the end", "position < context", "position < context + 1"),
        ("all lanes take the tile's first entry", "position // BLOCK_SIZE,", "tile_begin // BLOCK_SIZE,"),
    ],
    "any_query_length": [
        ("rows of the next program are stored", "(row < BLOCK_Q * GROUP) & ", ""),
        ("queries see the future", "position[None, :] <= row_position", "position[None, :] >= 0"),
        ("tiles start where the next sequence's do", "- query_start // BLOCK_Q - seq)", "- query_start // BLOCK_Q)"),
    ],
    "split_context": [
        ("every split goes over the first keys", "keys_begin = split * keys_per_split", "keys_begin = 0"),
        ("all splits leave their state in one place", "* NUM_SPLITS + split", "* NUM_SPLITS"),
    ],
}


@pytest.mark.parametrize(("name", "mutation"), [(name, m) for name in LADDER for m in MUTATIONS[name]])
def test_a_broken_kernel_is_noticed(make_batch, program_order, error, tmp_path, name, mutation) -> None:
    """A line that matters is broken in a copy of the kernel; in reversed order the comparison must show it."""
    what, original, broken = mutation
    source = (ROOT / ladder.STEPS[name].source).read_text(encoding="utf-8")
    assert source.count(original) == 1, what
    mutant: dict[str, Any] = {}
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(original, broken), encoding="utf-8")
    mutant = module_at(path)
    batch = make_batch(MIXED, group=3, head_dim=32)
    call = fit(name, call_of(batch))
    with program_order("reversed"):
        result = mutant.attend(call)
    assert not error(result, reference.paged_attention(**batch.arguments())) < 1e-2, what


def module_at(path: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def measured() -> Iterator[dict[str, int]]:
    """What interpreted launches inside really load, store (floats, in bytes), multiply, and their programs."""
    from triton.runtime.interpreter import interpreter_builder as builder

    own: Any = type(builder)
    seen = {"loaded": 0, "stored": 0, "flops": 0, "vector_flops": 0}

    def bytes_of(pointers: Any, mask: Any) -> int:
        element = pointers.dtype.scalar.element_ty
        return int(mask.data.sum()) * element.primitive_bitwidth // 8 if element.is_floating() else 0

    def load(pointers: Any, mask: Any, *others: Any) -> Any:
        seen["loaded"] += bytes_of(pointers, mask)
        return own.create_masked_load(builder, pointers, mask, *others)

    def store(pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        seen["stored"] += bytes_of(pointers, mask)
        return own.create_masked_store(builder, pointers, value, mask, *others)

    def dot(left: Any, right: Any, *others: Any) -> Any:
        seen["flops"] += 2 * left.data.shape[0] * left.data.shape[1] * right.data.shape[1]
        return own.create_dot(builder, left, right, *others)

    def multiply(left: Any, right: Any) -> Any:
        result = own.create_fmul(builder, left, right)
        if min(result.data.shape) > 1:
            seen["vector_flops"] += 2 * result.data.size
        return result

    replaced = {"create_masked_load": load, "create_masked_store": store, "create_dot": dot, "create_fmul": multiply}
    vars(builder).update(replaced)
    try:
        yield seen
    finally:
        for name in replaced:
            delattr(builder, name)


def work_of(name: str, shape: Shape, config: LaunchConfig) -> Work:
    if name == "engine":
        return ladder.engine_work(shape, config)
    module = getattr(ladder, name)
    return module.work(shape) if name == "one_head" else module.work(shape, config)


@pytest.mark.parametrize("name", ladder.STEPS)
@pytest.mark.parametrize("sequences", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_what_is_counted_is_what_the_interpreter_sees(make_batch, name, sequences, num_splits) -> None:
    """To the byte, and to the multiplication."""
    if num_splits > 1 and name not in ("split_context", "engine"):
        pytest.skip("it has no splits")
    config = replace(small_tiles(4, num_splits), tile=8)
    call = replace(fit(name, call_of(make_batch(sequences, head_dim=32))), config=config)
    shape = Shape(
        tuple(call.query_start_loc.diff().tolist()),
        tuple(call.seq_lens.tolist()),
        num_heads=8,
        num_kv_heads=2,
        head_dim=32,
        element_size=4,
    )
    with measured() as seen:
        ladder.STEPS[name].attend(call)
    work = work_of(name, shape, config)
    assert (work.loaded, work.stored) == (seen["loaded"], seen["stored"])
    assert work.flops == (seen["flops"] if work.matrix_units else seen["vector_flops"])


@pytest.mark.parametrize("name", ladder.STEPS)
def test_blocks_read_are_those_of_the_table(name) -> None:
    """The trace that the pages show, for every program, in splits where there are some."""
    call = random_call([(13, 1), (6, 1), (30, 1)])
    if name != "one_head":
        call = replace(call, config=LaunchConfig(2, 1, 8, num_splits=2 if name in ("split_context", "engine") else 1))
    with recording(kv_layer=call.kv_layer, block_tables=call.block_tables) as notes:
        ladder.STEPS[name].attend(call)
    tile = 4 if name == "one_head" else 8
    for row in range(3):
        for kv_head in range(2):
            read = walks_read(notes, call, row, kv_head)
            expected = [walk.tiles for walk in walks_by_table(call, row, kv_head, tile)]
            times = 2 if name == "one_head" else 1
            assert len(read) == times * len(expected)
            for i, walk in enumerate(sorted(read, key=lambda walk: walk.program)):
                tiles = expected[i // times]
                places = [(tile.first, tile.last, tile.key_blocks, tile.value_blocks) for tile in walk.tiles]
                assert places == [(tile.first, tile.last, tile.key_blocks, tile.value_blocks) for tile in tiles]
                heads = [i % 2] if name == "one_head" else [0, 1]
                for tile, other in zip(walk.tiles, tiles, strict=True):
                    assert tile.running_max == pytest.approx([other.running_max[head] for head in heads], rel=1e-4)
                    assert tile.running_sum == pytest.approx([other.running_sum[head] for head in heads], rel=1e-4)


def test_each_step_fixes_what_it_says() -> None:
    many, long, prompts = ladder.BATCHES.values()
    steps = ladder.STEPS
    work: Callable[[str, Shape], Work] = lambda name, shape: ladder.work_of(steps[name], shape)  # noqa: E731
    assert work("one_head", many).loaded > 3.9 * work("grouped_heads", many).loaded, "a group of 4 heads"
    assert work("grouped_heads", many).loaded + work("grouped_heads", many).stored == moved_at_least(many)
    assert work("grouped_heads", prompts).loaded > 3.9 * work("any_query_length", prompts).loaded, "4 tokens a program"
    assert work("any_query_length", long).programs == 8 and work("split_context", long).programs == 128
    assert work("any_query_length", long).seconds(H100) > 15 * work("split_context", long).seconds(H100)
    assert all(
        work("engine", shape).seconds(H100) <= 1.01 * min(work(name, shape).seconds(H100) for name in LADDER)
        for shape in ladder.BATCHES.values()
    ), "the chosen tiles are never worse than those of a step"


def moved_at_least(shape: Shape) -> int:
    least = floor(shape, H100)
    return least.loaded + least.stored


def test_the_ratio_of_the_gpu_parts_memory_from_arithmetic() -> None:
    assert 290 < H100.ratio < 300
    below = Work(H100.multiprocessors, loaded=1000, stored=0, flops=int(1000 * H100.ratio * 0.5))
    above = replace(below, flops=int(1000 * H100.ratio * 2))
    assert below.seconds(H100) == 1000 / H100.bandwidth
    assert above.seconds(H100) == pytest.approx(2 * below.seconds(H100), rel=1e-3)
    assert replace(below, programs=33).seconds(H100) == pytest.approx(4 * below.seconds(H100)), "a quarter of the GPU"


REFUSED = [
    ("one_head", {"query_lens": MIXED}, ValueError, r"46 query tokens for 4 sequences.*03_any_query_length"),
    ("grouped_heads", {"query_lens": MIXED}, ValueError, r"make each token a sequence of its own"),
    ("one_head", {"block_size": 12}, ValueError, r"block_size is 12; .*climb to the next step"),
    ("any_query_length", {"head_dim": 24}, ValueError, r"head_dim is 24; .*use the engine's kernel"),
    ("any_query_length", {"sliding_window": 5}, ValueError, r"sliding_window is 5; .*use the engine's kernel"),
    ("split_context", {"softcap": 2.0}, ValueError, r"softcap is 2.0; .*use the engine's kernel"),
    ("split_context", {"dtype": torch.bfloat16}, TypeError, r"bfloat16.*use float32 or float16"),
]


@pytest.mark.parametrize(("name", "shape", "kind", "message"), REFUSED)
def test_what_a_step_leaves_out_it_refuses(make_batch, name, shape, kind, message) -> None:
    shape = dict(shape)
    batch = make_batch(shape.pop("query_lens", DECODE), **shape)
    call = call_of(batch, batch.kv.dtype)
    with pytest.raises(kind, match=message):
        ladder.STEPS[name].attend(call)


def test_tensors_with_gaps_are_refused(make_batch) -> None:
    call = AttentionCall(**make_batch(DECODE).arguments())
    with pytest.raises(ValueError, match=r"kv_layer has strides .*\.contiguous\(\)"):
        ladder.STEPS["split_context"].attend(call)


def test_the_ladder_runs_as_a_script() -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "tutorials/kernels/ladder.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, cwd=ROOT / "docs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("largest error") == len(ladder.STEPS)
    assert done.stdout.count("no kernel does with less") == len(ladder.BATCHES)
