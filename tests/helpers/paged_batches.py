"""For tests of kernels: a batch of sequences in a poisoned cache, and launches whose programs run in another order."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

__all__ = ["Batch", "error", "make_batch", "program_order"]


@dataclass
class Batch:
    """Arguments of one attention call, and the same keys and values laid out plainly.

    Every slot that no sequence owns is NaN: other layers, other blocks, the rest of a last block, blocks below every
    window. Every block-table entry that no query needs is -1 or far out of range. Whoever reads one of them shows it.
    """

    query: Tensor
    kv: Tensor  # [num_blocks, layers, 2, kv_heads, block_size, head_dim]
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    keys: list[Tensor]  # of sequence i: [context, kv_heads, head_dim]
    values: list[Tensor]
    sliding_window: int | None
    softcap: float | None

    @property
    def layer(self) -> Tensor:
        return self.kv[:, 1]

    def arguments(self, dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Keyword arguments of paged_attention, in another dtype if asked."""
        return {
            "query": self.query.to(dtype or self.query.dtype),
            "kv_layer": self.layer.to(dtype or self.kv.dtype),
            "block_tables": self.block_tables,
            "query_start_loc": self.query_start_loc,
            "seq_lens": self.seq_lens,
            "scale": self.query.shape[2] ** -0.5,
            "sliding_window": self.sliding_window,
            "softcap": self.softcap,
        }


def _make_batch(
    sequences: list[tuple[int, int]],
    *,
    block_size: int = 16,
    kv_heads: int = 2,
    group: int = 4,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    sliding_window: int | None = None,
    softcap: float | None = None,
    seed: int = 0,
) -> Batch:
    """Build a batch from (context length, query tokens) pairs."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-context // block_size) for context, _ in sequences]
    pool = torch.randperm(sum(num_blocks) + 3, generator=generator).tolist()
    kv = torch.full((len(pool), 2, 2, kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
    tables = torch.full((len(sequences), max(num_blocks) + 2), -1, dtype=torch.int32)
    tables[:, 1::2] = 10**9
    keys, values = [], []
    for i, (context, queries) in enumerate(sequences):
        key, value = torch.randn(2, context, kv_heads, head_dim, generator=generator).to(dtype)
        keys.append(key)
        values.append(value)
        lowest = 0 if sliding_window is None else max(0, context - queries - sliding_window + 1)
        for j in range(lowest // block_size, num_blocks[i]):
            block = pool.pop()
            tables[i, j] = block
            for position in range(max(lowest, j * block_size), min(context, (j + 1) * block_size)):
                kv[block, 1, 0, :, position % block_size] = key[position]
                kv[block, 1, 1, :, position % block_size] = value[position]
    starts = torch.tensor([0] + [queries for _, queries in sequences]).cumsum(0).int()
    query = torch.randn(int(starts[-1]), kv_heads * group, head_dim, generator=generator).to(dtype)
    seq_lens = torch.tensor([context for context, _ in sequences], dtype=torch.int32)
    return Batch(query, kv, tables, starts, seq_lens, keys, values, sliding_window, softcap)


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    return _make_batch


@contextmanager
def _program_order(order: str) -> Iterator[None]:
    """Let the interpreter run the programs of a launch "forward", "reversed" or "shuffled".

    The interpreter counts through the grid and tells its builder each index. Here the builder takes the index at the
    same place of a permutation instead, so each program still runs exactly once.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    def permuted(x: int, y: int, z: int) -> None:
        nx, ny, nz = builder.grid_dim
        places = list(range(nx * ny * nz))
        if order == "reversed":
            places.reverse()
        elif order == "shuffled":
            random.Random(0).shuffle(places)
        place = places[(x * ny + y) * nz + z]
        type(builder).set_grid_idx(builder, place // (ny * nz), place // nz % ny, place % nz)

    builder.set_grid_idx = permuted
    try:
        yield
    finally:
        del builder.set_grid_idx


@pytest.fixture(scope="session")
def program_order() -> Callable[[str], AbstractContextManager[None]]:
    return _program_order


@pytest.fixture(scope="session")
def error() -> Callable[[Tensor, Tensor], float]:
    """The measure of all tests: max|err| / max|ref|; NaN counts as infinite."""

    def measure(result: Tensor, expected: Tensor) -> float:
        value = float((result.double() - expected.double()).abs().max() / expected.double().abs().max())
        return value if value == value else float("inf")

    return measure
