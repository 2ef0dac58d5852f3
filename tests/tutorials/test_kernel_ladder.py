"""Each kernel of the ladder against the oracle, in any order of its programs, and what it reads against the table."""

import importlib.util
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_batches import error, make_batch, program_order

pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parents[2] / "tutorials/kernels"))

import ladder
from batches import random_call, token_by_token
from door import small_tiles

from pagelens.kernels import reference
from pagelens.kernels.launch import LaunchConfig
from pagelens.kernels.trace import recording, walks_read
from pagelens.kernels.walk import AttentionCall, ProgramWalk, walks_by_table

__all__ = ["error", "make_batch", "program_order"]

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parents[2]
LADDER = ["one_head", "grouped_heads", "any_query_length", "split_context"]
MIXED = [(37, 7), (9, 1), (11, 11), (1, 1)]
DECODE = [(40, 1), (1, 1), (70, 1)]


def call_of(batch: Any, dtype: torch.dtype = torch.float32) -> AttentionCall:
    """Keys and values in a layer of their own, since the ladder's kernels take no strides."""
    arguments = batch.arguments(dtype)
    return AttentionCall(**arguments | {"kv_layer": arguments["kv_layer"].contiguous()})


def fit(name: str, call: AttentionCall) -> AttentionCall:
    return token_by_token(call) if ladder.STEPS[name].decode_only else call


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
@pytest.mark.parametrize("group", [1, 3])
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
        ("keys past the end count as zeros", 'tl.where(inside[None, :], scores, -float("inf"))', "scores"),
        ("heads read the KV head of another group", "2 * NUM_KV_HEADS + kv_head", "2 * NUM_KV_HEADS + 1 - kv_head"),
        ("every key is read through the first entry", "position // BLOCK_SIZE,", "position // BLOCK_SIZE * 0,"),
    ],
    "any_query_length": [
        ("rows of the next program are stored", "(row < BLOCK_Q * GROUP) & ", ""),
        ("queries see the future", "position[None, :] <= row_position", "position[None, :] >= 0"),
        (
            "a chunk is taken for a whole prompt",
            "row_position = context - query_len + row_query",
            "row_position = row_query",
        ),
    ],
    "split_context": [
        ("every split goes over the first keys", "keys_begin = split * keys_per_split", "keys_begin = 0"),
        ("splits overlap", "tl.minimum(keys_begin + keys_per_split, keys_end)", "keys_end"),
    ],
}


@pytest.mark.parametrize(("name", "mutation"), [(name, m) for name in LADDER for m in MUTATIONS[name]])
def test_a_broken_kernel_is_noticed(make_batch, program_order, error, tmp_path, name, mutation) -> None:
    """A line that matters is broken in a copy of the kernel; in reversed order the comparison must show it."""
    what, original, broken = mutation
    source = (ROOT / ladder.STEPS[name].source).read_text(encoding="utf-8")
    assert source.count(original) == 1, what
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(original, broken), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)
    batch = make_batch(MIXED, group=3, head_dim=32)
    call = fit(name, call_of(batch))
    with program_order("reversed"):
        result = mutant.attend(call)
    assert not error(result, reference.paged_attention(**batch.arguments())) < 1e-2, what


@pytest.mark.parametrize("name", ladder.STEPS)
def test_blocks_read_are_those_of_the_table(name) -> None:
    """The walks that the pages show: for the first step one of each head, a block a tile; then one of each group."""
    call = random_call([(13, 1), (6, 1), (30, 1)])
    alone = name == "one_head"
    if not alone:
        call = replace(call, config=LaunchConfig(2, 1, 8, num_splits=2 if name in ("split_context", "engine") else 1))
    with recording(kv_layer=call.kv_layer, block_tables=call.block_tables) as notes:
        ladder.STEPS[name].attend(call)
    if ladder.STEPS[name].decode_only:
        call = replace(call, config=None)  # its grid has a program for each sequence, without gaps
    for row, kv_head in itertools.product(range(3), range(2)):
        read = sorted(walks_read(notes, call, row, kv_head), key=lambda walk: walk.program)
        expected = walks_by_table(call, row, kv_head, 4 if alone else 8)
        assert len(read) == len(expected) * (2 if alone else 1)
        for rows in [slice(0, 1), slice(1, 2)] if alone else [slice(0, 2)]:
            walks = read[rows] if alone else read
            assert reads(walks) == reads(expected)
            assert softmax(walks, slice(0, 2)) == pytest.approx(softmax(expected, rows), rel=1e-4)


def reads(walks: list[ProgramWalk]) -> Any:
    return [(tile.first, tile.last, tile.key_blocks, tile.value_blocks) for walk in walks for tile in walk.tiles]


def softmax(walks: list[ProgramWalk], rows: slice) -> list[float | None]:
    tiles = [tile for walk in walks for tile in walk.tiles]
    return [number for tile in tiles for number in [*tile.running_max[rows], *tile.running_sum[rows]]]


REFUSED = [
    ("one_head", {"query_lens": MIXED}, ValueError, r"20 query tokens for 4 sequences.*03_any_query_length"),
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
