"""The Numba kernels against the oracle, in a poisoned cache; and when they are chosen, or cannot be."""

import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from pagelens.engine import ConfigError
from pagelens.engine.attention import select_kernels
from pagelens.kernels import numba_decode, numba_paged_attention, reference
from pagelens.kernels.numba_paged_attention import paged_attention, write_kv

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


@st.composite
def batches(draw):
    """Arguments of make_batch: lengths around the block size and long ones, prefill, chunks and decode mixed."""
    block_size = draw(st.sampled_from([1, 2, 8, 16, 32]))
    near = st.integers(max(1, block_size - 1), 2 * block_size + 1)
    sequences = []
    for _ in range(draw(st.integers(1, 5))):
        context = draw(near | st.integers(60, 130) | st.integers(250, 600))
        queries = draw(st.just(1) | st.just(min(context, 60)) | st.integers(0, min(context, 60)))
        sequences.append((context, queries))
    return {
        "sequences": [*sequences, (draw(near), 1)],
        "block_size": block_size,
        "kv_heads": draw(st.sampled_from([1, 2, 3])),
        "group": draw(st.sampled_from([1, 2, 3, 4, 7, 8])),
        "head_dim": draw(st.sampled_from([16, 24, 64, 80, 128])),
        "dtype": draw(st.sampled_from(list(LIMIT))),
        "sliding_window": draw(st.none() | st.sampled_from([1, 5, 16, 100])),
        "softcap": draw(st.none() | st.sampled_from([0.5, 50.0])),
        "seed": draw(st.integers(0, 9)),
    }


@settings(deadline=None, max_examples=80, derandomize=True)
@given(shape=batches())
def test_equals_the_oracle(make_batch, error, shape):
    batch = make_batch(**shape)
    expected = reference.paged_attention(**batch.arguments(torch.float32))
    assert error(paged_attention(**batch.arguments()), expected) < LIMIT[shape["dtype"]]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_context_is_cut_among_the_threads_and_merged(make_batch, error, threads):
    """The second sequence, and the window of the third, leave most of their stretches without a key."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for window in (None, 3):
            batch = make_batch([(4000, 1), (20, 1), (700, 40)], sliding_window=window)
            assert error(paged_attention(**batch.arguments()), reference.paged_attention(**batch.arguments())) < 1e-5
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("group", [1, 3, 50])
@pytest.mark.parametrize("shared", [100, 128, 700])  # too little to be worth it, just enough, and several stretches
def test_a_prefix_that_all_share_is_read_for_all_at_once(make_batch, error, shared, group, threads):
    """Twenty sequences whose tables begin with the blocks of the first, alone and with a prompt somewhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for prompt in (None, 0, 7, 19):
            lengths = [(shared + 4 * i + 1, 9 if i == prompt else 1) for i in range(20)]
            batch = make_batch(lengths, block_size=4, kv_heads=2, group=group, head_dim=16)
            batch.block_tables[:, : shared // 4] = batch.block_tables[0, : shared // 4].clone()
            for option in ({}, {"softcap": 5.0}, {"sliding_window": 3 * shared}, {"sliding_window": 50}):
                arguments = batch.arguments() | option
                assert error(paged_attention(**arguments), reference.paged_attention(**arguments)) < 1e-5
    finally:
        torch.set_num_threads(before)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    contexts=st.lists(st.integers(1, 40) | st.integers(300, 1300), min_size=1, max_size=9),
    shared=st.sampled_from([0, 100, 128, 260]),
    prompt=st.none() | st.integers(0, 8),
    window=st.sampled_from([1 << 40, 500, 7]),
    threads=st.sampled_from([1, 2, 3, 64]),
)
def test_every_key_is_given_to_one_thread(contexts, shared, prompt, window, threads):
    """The plan for decode: keys that all share, and behind them stretches that leave out none and take none twice."""
    block_size = 4
    contexts = np.array([shared + context for context in contexts], np.int32)
    queries = np.array([2 if number == prompt else 1 for number in range(len(contexts))])
    starts = np.append(0, queries.cumsum()).astype(np.int32)
    tables = np.arange(len(contexts) * 400, dtype=np.int32).reshape(len(contexts), 400)
    tables[:, : shared // block_size] = tables[0, : shared // block_size]
    plan = numba_decode.plan_decode(tables, starts, contexts, block_size, window, threads)
    sequences, found, readers, stretches, of_sequence, of_thread = plan
    assert list(sequences) == [number for number in range(len(contexts)) if number != prompt]
    side_by_side = prompt is None or prompt in (0, len(contexts) - 1) or prompt >= len(contexts)
    worth_it = shared >= 128 and len(sequences) >= 4 and side_by_side
    assert found == (shared if worth_it and max(contexts[sequences]) <= window else 0)
    assert readers == min(threads, found // 64)
    assert of_sequence[0] == of_thread[0] == 0 and of_sequence[-1] == of_thread[-1] <= len(stretches)
    for number, sequence in enumerate(sequences):
        own = stretches[of_sequence[number] + readers : of_sequence[number + 1]]
        first = max(found, int(contexts[sequence]) - window)
        assert [begin for _, begin, _ in own] == [first, *(end for _, _, end in own[:-1])]
        assert own[-1][2] == contexts[sequence] and all(row[0] == sequence and row[1] < row[2] for row in own)
    keys = [sum(end - begin for _, begin, end in stretches[a:b]) for a, b in itertools.pairwise(of_thread)]
    assert max(keys) <= max(64, -(-sum(keys) // threads))


def test_a_sequence_that_is_no_number_harms_no_other(make_batch, error):
    batch = make_batch([(300, 1), (40, 1), (90, 30)])
    expected = reference.paged_attention(**batch.arguments())
    batch.query[0] = float("nan")
    assert error(paged_attention(**batch.arguments())[1:], expected[1:]) < 1e-5


def test_large_scores_neither_overflow_nor_vanish(make_batch, error):
    """Scores of thousands: weights that are all but 0 and 1, and a largest score that rises from tile to tile."""
    batch = make_batch([(300, 1), (300, 300)])
    arguments = batch.arguments() | {"scale": 40.0}
    assert error(paged_attention(**arguments), reference.paged_attention(**arguments)) < 1e-4


def test_query_and_out_may_be_slices_of_larger_tensors(make_batch, error):
    batch = make_batch([(30, 7), (9, 1)])
    wide, out = torch.full((8, 12, 64), float("nan")), torch.zeros(8, 10, 64)
    wide[:, :8] = batch.query
    paged_attention(**(batch.arguments() | {"query": wide[:, :8]}), out=out[:, 1:9])
    assert error(out[:, 1:9], reference.paged_attention(**batch.arguments())) < 1e-5
    assert not out[:, 0].any() and not out[:, 9].any()


def test_no_token_is_no_work(make_batch):
    assert paged_attention(**make_batch([(5, 0), (12, 0)]).arguments()).shape == (0, 8, 64)


def test_two_threads_may_launch(make_batch, error):
    batch = make_batch([(200, 20), (90, 1)])
    expected = reference.paged_attention(**batch.arguments())
    errors: list[float] = []

    def launch():
        errors.extend(error(paged_attention(**batch.arguments()), expected) for _ in range(50))

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 100 and max(errors) < 1e-5


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    num_tokens=st.integers(0, 40),
    kv_heads=st.sampled_from([1, 3]),
    block_size=st.sampled_from([1, 8, 16]),
    dtype=st.sampled_from(list(LIMIT)),
    cache_dtype=st.sampled_from(list(LIMIT)),
)
def test_write_equals_reference(num_tokens, kv_heads, block_size, dtype, cache_dtype):
    """Key and value are columns of a wider projection; every fifth token is skipped."""
    pool = torch.randn(48 // block_size + 1, 3, 2, kv_heads, block_size, 80).to(cache_dtype)
    expected = pool.clone()
    projection = torch.randn(num_tokens, 3 * kv_heads, 80).to(dtype)
    slots = torch.randperm(pool.shape[0] * block_size)[:num_tokens]
    slots[::5] = -1
    new = projection[:, kv_heads : 2 * kv_heads], projection[:, 2 * kv_heads :]
    reference.write_kv(*new, expected[:, 1], slots)
    write_kv(*new, pool[:, 1], slots)
    assert torch.equal(pool, expected)


def test_what_cannot_be_read_is_refused(make_batch):
    arguments = make_batch([(5, 5)]).arguments()
    gaps = arguments["kv_layer"].transpose(2, 3).contiguous().transpose(2, 3)
    with pytest.raises(ValueError, match=r'strides \(.*, 128, 1\); the slots.*without gaps.*use kernel="torch"'):
        paged_attention(**(arguments | {"kv_layer": gaps}))
    double = {name: arguments[name].double() for name in ("query", "kv_layer")}
    with pytest.raises(TypeError, match=r'KV cache is torch.float64 on cpu.*use kernel="torch"'):
        paged_attention(**(arguments | double))


# -------------------------------------------------------------------------------------------------- when it is chosen


def test_auto_is_numba_on_a_cpu_and_says_why():
    kernels = select_kernels("auto", torch.device("cpu"))
    assert kernels.name == "numba" and not kernels.interpreted
    assert "the model runs on the CPU" in kernels.why
    assert kernels.paged_attention is numba_paged_attention.paged_attention
    ready = kernels.compiled_for(torch.bfloat16)
    assert ready.why.startswith(kernels.why) and ready.why.endswith(" s)")


def test_by_name_on_a_gpu_it_is_refused():
    with pytest.raises(
        ConfigError, match=r'kernel="numba" cannot run: Numba compiles for the CPU.*use kernel="triton"'
    ):
        select_kernels("numba", torch.device("cuda"))


def python(code: str, **environment: str) -> str:
    env = dict(os.environ) | environment
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_numba_torch_serves_and_says_why():
    code = """
import sys
sys.modules["numba"] = None  # import numba: ModuleNotFoundError
import torch
from pagelens.engine import ConfigError
from pagelens.engine.attention import select_kernels
kernels = select_kernels("auto", torch.device("cpu"))
print(kernels.name, "|", kernels.why)
try:
    select_kernels("numba", torch.device("cpu"))
except ConfigError as error:
    print(error)
"""
    auto, by_name = python(code).splitlines()
    assert auto.startswith("torch | Numba cannot be imported (") and "pip install numba" in auto
    assert by_name.startswith('kernel="numba" cannot run: Numba cannot be imported (')


def test_where_nothing_can_be_cached_it_is_compiled_each_time():
    code = """
from numba.core import caching
caching.FunctionCache._impl_class._locator_classes = []
import torch
from pagelens.kernels.numba_paged_attention import _scatter, write_kv
row, kv_layer = torch.ones(1, 1, 8), torch.zeros(1, 2, 1, 1, 8)
write_kv(row, row, kv_layer, torch.zeros(1, dtype=torch.int64))
print(kv_layer.sum().item(), _scatter.stats.cache_path)
"""
    assert python(code) == "16.0 None"
