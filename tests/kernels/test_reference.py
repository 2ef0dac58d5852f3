"""The oracle itself, against attention written out token by token in double precision."""

import pytest
import torch

from pagelens.kernels import reference


def naive_attention(batch):
    """softmax(q·k·scale)·v of one query token and head at a time, on the keys as they were before paging."""
    rows = []
    group = batch.query.shape[1] // batch.keys[0].shape[1]
    for i, context in enumerate(batch.seq_lens.tolist()):
        start, stop = batch.query_start_loc[i : i + 2].tolist()
        for token in range(start, stop):
            position = context - stop + token
            first = 0 if batch.sliding_window is None else max(0, position - batch.sliding_window + 1)
            heads = []
            for head in range(batch.query.shape[1]):
                key = batch.keys[i][first : position + 1, head // group].double()
                value = batch.values[i][first : position + 1, head // group].double()
                scores = key @ batch.query[token, head].double() * key.shape[1] ** -0.5
                if batch.softcap is not None:
                    scores = batch.softcap * (scores / batch.softcap).tanh()
                heads.append(scores.softmax(0) @ value)
            rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("sliding_window", [None, 1, 7, 1000])
@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_oracle_equals_attention_written_out(make_batch, error, block_size, sliding_window, softcap):
    shape = {"block_size": block_size, "group": 3, "head_dim": 32}
    sequences = [(17, 1), (9, 9), (40, 13), (16, 16), (1, 1), (33, 1)]
    batch = make_batch(sequences, **shape, sliding_window=sliding_window, softcap=softcap)
    assert error(reference.paged_attention(**batch.arguments()), naive_attention(batch)) < 1e-5


def test_a_sequence_may_bring_no_token(make_batch, error):
    batch = make_batch([(5, 5), (12, 0), (8, 1)])
    assert error(reference.paged_attention(**batch.arguments()), naive_attention(batch)) < 1e-5


def test_sliding_window_is_the_one_of_transformers():
    masking = pytest.importorskip("transformers.masking_utils")
    sees = masking.sliding_window_causal_mask_function(4)
    position = torch.tensor(9)
    assert [key for key in range(12) if sees(0, 0, position, torch.tensor(key))] == [6, 7, 8, 9]  # p - w + 1 … p


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(make_batch, error, dtype):
    batch = make_batch([(50, 3), (20, 1)], dtype=dtype)
    result = reference.paged_attention(**batch.arguments())
    assert result.dtype == dtype
    assert error(result, naive_attention(batch)) < (1e-3 if dtype == torch.float16 else 8e-3)


def test_out_receives_the_result(make_batch):
    batch = make_batch([(5, 5)])
    out = torch.empty_like(batch.query)
    assert reference.paged_attention(**batch.arguments(), out=out) is out
    assert torch.equal(out, reference.paged_attention(**batch.arguments()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": torch.tensor([5])}, r"seq_lens is torch.int64; it must be torch.int32: use seq_lens.to"),
        ({"query": torch.zeros(5, 7, 64)}, r"num_heads is 7; it must be a multiple of the cache's 2 KV heads"),
        ({"query": torch.zeros(5, 8, 32)}, r"head_dim of query is 32; it must be 64"),
        (
            {"query": torch.zeros(5, 8, 64, dtype=torch.float16)},
            r"query is torch.float16 and the KV cache torch.float32",
        ),
        ({"query_start_loc": torch.tensor([0, 1, 5]).int()}, r"query_start_loc is \(3,\); it must be \[2\]"),
        ({"sliding_window": 0}, r"sliding_window is 0; it must be None or at least 1"),
        ({"kv_layer": torch.zeros(4, 3, 2, 16, 64)}, r"kv_layer is \(4, 3, 2, 16, 64\)"),
        ({"out": torch.zeros(5, 8, 32)}, r"out is \(5, 8, 32\)"),
    ],
)
def test_errors_name_value_and_limit(make_batch, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        reference.paged_attention(**(make_batch([(5, 5)]).arguments() | change))
