"""Small batches to run the ladder's kernels on: scattered blocks, and long queries cut into single tokens."""

from dataclasses import replace

import torch

from pagelens.kernels.walk import AttentionCall


def random_call(sequences: list[tuple[int, int]], seed: int = 0) -> AttentionCall:
    """A small batch of (context length, query tokens), its blocks of 4 slots scattered: 4 heads of 16, 2 KV heads."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-context // 4) for context, _ in sequences]
    pool = torch.randperm(sum(blocks), generator=generator).int()
    tables = torch.zeros(len(sequences), max(blocks), dtype=torch.int32)
    for i, own in enumerate(pool.split(blocks)):
        tables[i, : len(own)] = own
    starts = torch.tensor([0] + [queries for _, queries in sequences]).cumsum(0).int()
    query = torch.randn(int(starts[-1]), 4, 16, generator=generator)
    kv_layer = torch.randn(sum(blocks), 2, 2, 4, 16, generator=generator)
    seq_lens = torch.tensor([context for context, _ in sequences], dtype=torch.int32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = (tensor.to(device) for tensor in (query, kv_layer, tables, starts, seq_lens))
    return AttentionCall(*arguments, scale=0.25)


def token_by_token(call: AttentionCall) -> AttentionCall:
    """The same call for a kernel that knows one query a sequence: each query token becomes a sequence."""
    lengths = call.query_start_loc.diff()
    seq = torch.repeat_interleave(lengths)
    number = torch.arange(len(seq), device=seq.device)
    last = call.seq_lens[seq] - call.query_start_loc[seq + 1] + number + 1
    starts = torch.arange(len(seq) + 1, dtype=torch.int32, device=seq.device)
    return replace(call, block_tables=call.block_tables[seq], query_start_loc=starts, seq_lens=last.int())
