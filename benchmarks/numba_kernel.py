"""Numba's paged attention against gathering the blocks into a dense tensor and calling `scaled_dot_product_attention`.

    python benchmarks/numba_kernel.py

One layer of a 135 M Llama (9 heads, 3 KV heads of 64), blocks of 16, drawn from a pool at random. Both run alternately
in one process. Aim: decoding 16 sequences of 1,024 tokens at least 4 times as fast.
"""

import time
from collections.abc import Callable
from statistics import median

import numba
import torch
from machine import print_machine
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pagelens.kernels import reference
from pagelens.kernels.numba_paged_attention import compile_for, paged_attention

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
SCALE = HEAD_DIM**-0.5
CASES = [("decode", 16, 128, 1), ("decode", 16, 1024, 1), ("decode", 64, 512, 1), ("decode", 1, 8192, 1)]
CASES += [("prefill", 4, 256, 256), ("chunk", 1, 4096, 256)]
ROUNDS = 30


def batch(num_seqs: int, context: int, num_queries: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Query, layer, block tables, starts and lengths of sequences that are all alike; blocks in random order."""
    blocks = -(-context // BLOCK_SIZE)
    pool = torch.randn(num_seqs * blocks, 2, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM).to(dtype)
    tables = torch.randperm(num_seqs * blocks).int().view(num_seqs, blocks)
    query = torch.randn(num_seqs * num_queries, HEADS, HEAD_DIM).to(dtype)
    starts = torch.arange(num_seqs + 1).int() * num_queries
    return query, pool[:, 1], tables, starts, torch.full((num_seqs,), context).int()


def gather_and_attend(query: Tensor, layer: Tensor, tables: Tensor, starts: Tensor, contexts: Tensor) -> Tensor:
    """What one does without such a kernel. The sequences being alike, there is nothing to pad and little to mask."""
    num_seqs, context = len(contexts), int(contexts[0])
    gathered = layer[tables.long()].permute(2, 0, 3, 1, 4, 5).reshape(2, num_seqs, KV_HEADS, -1, HEAD_DIM)
    queries = query.view(num_seqs, -1, HEADS, HEAD_DIM).transpose(1, 2)
    keys, values = gathered[:, :, :, :context]
    seen = torch.ones(queries.shape[2], context, dtype=torch.bool).tril(context - queries.shape[2])
    mask = None if queries.shape[2] == 1 else seen
    out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=SCALE, enable_gqa=True)
    return out.transpose(1, 2).reshape(query.shape)


def alternately(rounds: int, *functions: Callable[[], Tensor]) -> list[float]:
    """Median seconds of each."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, spent in zip(functions, times, strict=True):
            started = time.perf_counter()
            function()
            spent.append(time.perf_counter() - started)
    return [median(spent) for spent in times]


def compare(name: str, num_seqs: int, context: int, num_queries: int, dtype: torch.dtype, rounds: int) -> float:
    """Print one line; returns how many times faster Numba is than gathering."""
    arguments = batch(num_seqs, context, num_queries, dtype)

    def ours() -> Tensor:
        return paged_attention(*arguments, scale=SCALE)

    def gathering() -> Tensor:
        return gather_and_attend(*arguments)

    def oracle() -> Tensor:
        return reference.paged_attention(*arguments, scale=SCALE)

    largest = oracle().float().abs().max()
    difference = max(float((f().float() - oracle().float()).abs().max() / largest) for f in (ours, gathering))
    assert difference < (1e-4 if dtype == torch.float32 else 3e-2), f"the results differ by {difference}"
    mine, gathered, torchs = alternately(rounds, ours, gathering, oracle)
    read = num_seqs * context * 2 * KV_HEADS * HEAD_DIM * dtype.itemsize
    print(
        f"{name:<8}{num_seqs:>3} x {context:<5} {str(dtype).removeprefix('torch.'):<9}{mine * 1e3:>8.2f} ms"
        f"{read / mine / 1e9:>7.1f} GB/s{gathered * 1e3:>10.2f} ms {gathered / mine:>5.1f}x"
        f"{torchs * 1e3:>10.2f} ms {torchs / mine:>5.1f}x"
    )
    return gathered / mine


@torch.inference_mode()
def main(rounds: int = ROUNDS) -> None:
    print_machine()
    print(f"numba     {numba.__version__}")
    for dtype in (torch.float32, torch.bfloat16):
        print(f"compiled  {compile_for(dtype):.2f} s for {dtype} (or loaded from the cache of an earlier run)")
    print(f"{'':<28}{'numba':>11}{'reads':>12}{'gather + SDPA':>19}{'kernel=torch':>18}")
    for case in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            compare(*case, dtype, rounds)


if __name__ == "__main__":
    main()
