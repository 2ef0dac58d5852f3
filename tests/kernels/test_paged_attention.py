"""The Triton attention kernel against the oracle, under the interpreter."""

import importlib.util
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from pagelens.kernels import paged_attention as kernel_module
from pagelens.kernels import reference
from pagelens.kernels.availability import overflow_checks
from pagelens.kernels.launch import LaunchConfig
from pagelens.kernels.paged_attention import paged_attention

pytestmark = pytest.mark.triton

LIMIT = {torch.float32: 1e-5, torch.float16: 1e-3}


def small_tiles(group, num_splits=1):
    """The tiles of a GPU: 16 rows (more for a larger group) and 16 keys."""
    block_m = max(16, 1 << (group - 1).bit_length())
    return LaunchConfig(block_m, block_m // group, tile=16, num_splits=num_splits)


@st.composite
def batches(draw):
    """Arguments of make_batch: lengths around the block size and long ones, prefill, chunks and decode mixed."""
    block_size = draw(st.sampled_from([1, 8, 16, 32]))
    near = st.integers(max(1, block_size - 1), 2 * block_size + 1)
    sequences = []
    for _ in range(draw(st.integers(1, 5))):
        context = draw(near | st.integers(100, 280))
        queries = draw(st.just(1) | st.just(min(context, 60)) | st.integers(1, min(context, 60)))
        sequences.append((context, queries))
    return {
        "sequences": sequences,
        "block_size": block_size,
        "kv_heads": draw(st.sampled_from([1, 2])),
        "group": draw(st.sampled_from([1, 2, 3, 8])),
        "head_dim": draw(st.sampled_from([32, 64, 80, 96, 128, 256])),
        "dtype": draw(st.sampled_from([torch.float32, torch.float16])),
        "sliding_window": draw(st.none() | st.sampled_from([1, 5, 16, 100])),
        "softcap": draw(st.none() | st.sampled_from([0.5, 50.0])),
        "seed": draw(st.integers(0, 9)),
    }


@settings(deadline=None, max_examples=100, derandomize=True)
@given(shape=batches(), order=st.sampled_from(["forward", "reversed", "shuffled"]), splits=st.sampled_from([0, 1, 4]))
def test_equals_the_oracle(make_batch, program_order, error, shape, order, splits):
    """splits 0: the tiles that the interpreter prefers; 1: those of a GPU; 4: those, with split contexts."""
    batch = make_batch(**shape)
    config = None if splits == 0 else small_tiles(shape["group"], splits)
    expected = reference.paged_attention(**batch.arguments(torch.float32))
    with program_order(order):
        result = paged_attention(**batch.arguments(), config=config)
    assert error(result, expected) < LIMIT[shape["dtype"]]


@pytest.mark.parametrize("num_splits", [1, 2, 16])
def test_long_context_in_small_batch(make_batch, error, num_splits):
    """Sixteen splits of 16-key tiles; the second sequence leaves most of its splits without a key."""
    batch = make_batch([(1500, 1), (20, 1)])
    result = paged_attention(**batch.arguments(), config=small_tiles(4, num_splits))
    assert error(result, reference.paged_attention(**batch.arguments())) < 1e-5


def test_a_window_in_splits_leaves_rows_without_keys(make_batch, error):
    batch = make_batch([(300, 40)], sliding_window=3)
    result = paged_attention(**batch.arguments(), config=small_tiles(4, 4))
    assert error(result, reference.paged_attention(**batch.arguments())) < 1e-5


def test_a_sequence_may_bring_no_token(make_batch, error):
    batch = make_batch([(5, 5), (12, 0), (8, 1)])
    result = paged_attention(**batch.arguments(), config=small_tiles(4))
    assert error(result, reference.paged_attention(**batch.arguments())) < 1e-5


@pytest.mark.parametrize("num_splits", [0, 1, 2])
def test_the_first_token_of_a_lone_sequence(make_batch, error, num_splits):
    batch = make_batch([(1, 1)])
    config = small_tiles(4, num_splits) if num_splits else None
    assert error(paged_attention(**batch.arguments(), config=config), batch.values[0].repeat_interleave(4, 1)) < 1e-6


def test_no_32_bit_integer_overflows(make_batch):
    """The interpreter checks each operation; launches leave that out for speed, except here."""
    batch = make_batch([(100, 20), (40, 1)], sliding_window=30)
    with overflow_checks():
        paged_attention(**batch.arguments(), config=small_tiles(4, 2))


def test_query_and_out_may_be_slices_of_larger_tensors(make_batch, error):
    """A projection of q, k and v in one tensor hands its first columns over, without a copy."""
    batch = make_batch([(30, 7), (9, 1)])
    arguments = batch.arguments()
    wide = torch.full((8, 12, 64), float("nan"))
    wide[:, :8] = batch.query
    out = torch.zeros(8, 10, 64)
    paged_attention(**(arguments | {"query": wide[:, :8]}), out=out[:, 1:9])
    assert error(out[:, 1:9], reference.paged_attention(**arguments)) < 1e-5
    assert not out[:, 0].any() and not out[:, 9].any()


def test_bfloat16_is_refused_when_interpreted(make_batch):
    with pytest.raises(TypeError, match=r'bfloat16.*use a float32 or float16 cache there, or kernel="torch"'):
        paged_attention(**make_batch([(5, 5)], dtype=torch.bfloat16).arguments())


def test_head_dim_must_be_contiguous(make_batch):
    arguments = make_batch([(5, 5)]).arguments()
    arguments["query"] = arguments["query"].transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match=r"query has stride 8 along head_dim; it must be 1"):
        paged_attention(**arguments)


def test_two_threads_may_launch(make_batch, error):
    """The interpreter patches triton.language globally; the lock keeps two launches apart."""
    batches = [make_batch([(20, 1), (9, 9)], seed=seed) for seed in (1, 2)]
    expected = [reference.paged_attention(**batch.arguments()) for batch in batches]
    errors = []

    def launch(i):
        for _ in range(20):
            try:
                errors.append(error(paged_attention(**batches[i].arguments()), expected[i]))
            except Exception as failure:
                errors.append(failure)

    threads = [threading.Thread(target=launch, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 40
    assert all(isinstance(e, float) and e < 1e-5 for e in errors), errors


MUTATIONS = {
    "rows of the next program are stored": ("(row < BLOCK_Q * GROUP) & ", ""),
    "a query sees one key too many": ("tl.minimum(context - query_len + row_query, keys_end - 1)", "keys_end - 1"),
    "the window is one short": ("> row_position - WINDOW)", "> row_position - WINDOW + 1)"),
    "every tile is read through the first table entry": ("position // BLOCK_SIZE,", "position // BLOCK_SIZE * 0,"),
    "scores are capped at another rate": ("scores * (2 / SOFTCAP)", "scores * (1 / SOFTCAP)"),
    "old sums are not scaled down": ("acc * shrink", "acc"),
    "the last tile reads past the end": ("inside = position < keys_end", "inside = position < keys_end + 1"),
    "heads read the KV head of another group": (
        "kv_head * GROUP + row % GROUP",
        "(kv_head + 1) % 2 * GROUP + row % GROUP",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_noticed(make_batch, program_order, error, tmp_path, name):
    """Each line that matters is broken in a copy of the kernel; one batch, in reversed order, must show each."""
    original, broken = MUTATIONS[name]
    source = Path(kernel_module.__file__).read_text()
    assert original in source
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(original, broken))
    spec = importlib.util.spec_from_file_location("pagelens.kernels.mutant", path)
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)

    batch = make_batch([(40, 11), (23, 1), (33, 33)], group=3, sliding_window=20, softcap=1.0)
    expected = reference.paged_attention(**batch.arguments())
    with program_order("reversed"):
        assert error(paged_attention(**batch.arguments(), config=small_tiles(3)), expected) < 1e-5
        assert error(mutant.paged_attention(**batch.arguments(), config=small_tiles(3)), expected) > 1e-2
