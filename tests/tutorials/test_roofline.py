"""The bytes and FLOPs that the ladder counts: those that the interpreter sees, and what follows from them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parents[2] / "tutorials/kernels"))

import ladder
from batches import random_call, token_by_token
from door import small_tiles
from roofline import H100, Shape, Work, floor

from pagelens.kernels.launch import LaunchConfig

pytestmark = pytest.mark.triton


SPLIT = [("split_context", 4), ("engine", 4)]
DECODE, MIXED = [(40, 1), (1, 1), (70, 1)], [(37, 7), (9, 1), (11, 11)]


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


def counted(name: str, shape: Shape, config: LaunchConfig) -> Work:
    """What the step counts with these tiles, where its entry in the ladder would choose some."""
    if name == "engine":
        return ladder.engine_work(shape, config)
    count = getattr(ladder, name).work
    return count(shape) if name == "one_head" else count(shape, config)


@pytest.mark.parametrize("sequences", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize(("name", "num_splits"), [*((name, 1) for name in ladder.STEPS), *SPLIT])
def test_what_is_counted_is_what_the_interpreter_sees(name, num_splits, sequences) -> None:
    """To the byte, and to the multiplication."""
    config = replace(small_tiles(2, num_splits), tile=8)
    call = replace(random_call(sequences), config=config)
    call = token_by_token(call) if ladder.STEPS[name].decode_only else call
    lengths = tuple(call.query_start_loc.diff().tolist()), tuple(call.seq_lens.tolist())
    shape = Shape(*lengths, num_heads=4, num_kv_heads=2, head_dim=16, block_size=4, element_size=4)
    with measured() as seen:
        ladder.STEPS[name].attend(call)
    work = counted(name, shape, config)
    assert (work.loaded, work.stored) == (seen["loaded"], seen["stored"])
    assert work.flops == (seen["flops"] if work.matrix_units else seen["vector_flops"])


def test_each_step_fixes_what_it_says() -> None:
    many, long, prompts = ladder.BATCHES.values()
    first, grouped, unified, split = list(ladder.STEPS.values())[:4]
    work, least = ladder.work_of, floor(many, H100)
    assert work(first, many).loaded > 3.9 * work(grouped, many).loaded, "a group of 4 heads"
    assert (work(grouped, many).loaded, work(grouped, many).stored) == (least.loaded, least.stored)
    assert work(grouped, prompts).loaded > 3.9 * work(unified, prompts).loaded, "4 tokens share a key"
    assert (work(unified, long).programs, work(split, long).programs) == (8, 128)
    assert work(unified, long).seconds(H100) > 15 * work(split, long).seconds(H100)
    for shape in ladder.BATCHES.values():
        times = [work(step, shape).seconds(H100) for step in ladder.STEPS.values()]
        assert times[-1] == min(times), "the chosen tiles are never worse than a step's own"


def test_the_ratio_of_the_gpu_parts_memory_from_arithmetic() -> None:
    assert 290 < H100.ratio < 300
    below = Work(H100.multiprocessors, loaded=1000, stored=0, flops=int(1000 * H100.ratio * 0.5))
    above = replace(below, flops=int(1000 * H100.ratio * 2))
    assert below.seconds(H100) == 1000 / H100.bandwidth
    assert above.seconds(H100) == pytest.approx(2 * below.seconds(H100), rel=1e-3)
    assert replace(below, programs=33).seconds(H100) == pytest.approx(4 * below.seconds(H100)), "a quarter of the GPU"
