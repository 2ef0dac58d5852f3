"""Tile sizes: how a kernel cuts its work into programs, for a GPU and for the interpreter.

Nothing in this file needs triton to be installed.

A GPU runs hundreds of programs side by side, and a program's tiles must fit its registers: many programs, small tiles.
The interpreter runs one program after the other and pays for each operation, hardly for its size: few programs, large
tiles. One function per kind of kernel decides both.
"""

from dataclasses import dataclass
from functools import cache

import torch

from .availability import TritonStatus, interpreter_lock, triton_status

__all__ = ["LaunchConfig", "TritonStatus", "choose_launch", "interpreter_lock", "row_tile", "triton_status"]

GPU_PROGRAMS = 256
"""Programs that a decode launch should have at least, about two for each multiprocessor of a large GPU. Fewer, and the
context of each sequence is split among several."""

MAX_SPLITS = 16
KEYS_PER_SPLIT = 256
"""A split shorter than this is not worth its share of the merge."""

SMALL_GPUS = (86, 87, 89, 120, 121)
"""Compute capabilities, ten times, of graphics cards and boards: they have matrix units, but room for fewer threads."""


@dataclass(frozen=True)
class LaunchConfig:
    """How the attention kernel cuts its work.

        one program: block_q query tokens × the heads of one group          tile keys at a time
        ┌──────────────────────────┐ ┐                                      ┌────────────────┐
        │ row 0   token 0, head 0  │ │                                      │                │
        │ row 1   token 0, head 1  │ │ block_q · group                      │     scores     │
        │ row 2   token 1, head 0  │ │ rows in use                          │                │
        │ row 3   token 1, head 1  │ ┘                                      │                │
        │ row …   padding          │   block_m rows, a power of two         │                │
        └──────────────────────────┘                                        └────────────────┘

    Attributes:
        block_m: rows of a tile, a power of two and at least the group (query heads per KV head).
        block_q: query tokens of a tile, block_m // group.
        tile: keys per step of the inner loop, a power of two. It has nothing to do with the cache's block size.
        num_splits: programs that share the context of one query tile (flash-decoding); 1 means no merge launch.
        num_warps: warps of a program, 32 threads each; the interpreter has none.
        num_stages: iterations whose loads are in flight at once; the interpreter has none.
    """

    block_m: int
    block_q: int
    tile: int
    num_splits: int = 1
    num_warps: int = 4
    num_stages: int = 2

    def grid(self, num_tokens: int, num_seqs: int, num_kv_heads: int) -> tuple[int, int, int]:
        """Programs of one launch: (tiles of query tokens, KV heads, splits).

        The number of tiles is an upper bound that needs no sequence's length; paged_attention.py shows why it suffices.
        """
        return num_tokens // self.block_q + num_seqs, num_kv_heads, self.num_splits


def choose_launch(
    *,
    num_tokens: int,
    num_seqs: int,
    max_query_len: int,
    max_context: int,
    group: int,
    num_kv_heads: int,
    head_dim: int,
    element_size: int,
    interpreted: bool,
    capability: int | None = None,
) -> LaunchConfig:
    """Choose the tiles of one attention launch.

    Args:
        num_tokens: query tokens of the batch.
        num_seqs: sequences of the batch.
        max_query_len: most query tokens of one sequence; read only when interpreted, a GPU would have to be waited for.
        max_context: an upper bound of the context length, in tokens.
        group: query heads per KV head.
        num_kv_heads: KV heads.
        head_dim: elements of a head.
        element_size: bytes of an element of the cache.
        interpreted: for the interpreter instead of a GPU.
        capability: of the GPU, ten times, as in sm_90; None: of the one that is here.
    """
    padded_dim = next_power_of_two(head_dim)
    if interpreted:
        # A tile of more tokens than the batch has leaves no surplus program (paged_attention.py explains the grid).
        tokens = max(max_query_len, min(num_tokens + 1, 16))
        block_m = max(next_power_of_two(group), min(256, next_power_of_two(tokens * group)))
        tile = min(1024, next_power_of_two(max_context), 2**17 // max(block_m, padded_dim))
        return LaunchConfig(block_m, block_m // group, tile)

    # tl.dot wants at least 16 rows and 16 keys. With long queries more rows share each key that is loaded. float32, and
    # everything before Ampere, is multiplied without matrix units, out of registers, so its tiles are small.
    # compile_report.py shows that none of these spills registers.
    capability = gpu_capability() if capability is None else capability
    matrix_units = element_size <= 2 and capability >= 80
    many_rows = matrix_units and num_tokens >= 16 * num_seqs
    rows = 16 if not many_rows else 32 if capability in SMALL_GPUS else 64
    block_m = max(rows, next_power_of_two(group))
    tile = max(16, min(64 if many_rows else 32, (2**13 if matrix_units else 2**11) // padded_dim))
    num_warps = 8 if block_m >= 64 else 4
    num_stages = 2 if matrix_units or padded_dim <= 128 else 1
    num_splits = 1
    if num_tokens == num_seqs:  # nothing but decode
        wanted = min(MAX_SPLITS, GPU_PROGRAMS // (num_seqs * num_kv_heads), max_context // KEYS_PER_SPLIT)
        num_splits = next_power_of_two(max(1, wanted) + 1) // 2
    return LaunchConfig(block_m, block_m // group, tile, num_splits, num_warps, num_stages)


@cache
def gpu_capability() -> int:
    """Compute capability of the GPU, ten times, as in sm_90; that of an A100 where there is none."""
    if not torch.cuda.is_available():
        return 80
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def row_tile(rows: int, width: int, *, interpreted: bool) -> int:
    """Rows of ``width`` elements that one program of a copying kernel takes, a power of two.

    On a GPU about 1,024 elements, 8 for each thread of 4 warps; interpreted, all rows up to 2**18 elements.
    """
    budget = 2**18 if interpreted else 1024
    return max(1, min(next_power_of_two(rows), budget // width))


def next_power_of_two(n: int) -> int:
    """Round up to a power of two: 1, 2, 4, 8 … (triton has this too, but may not be installed)."""
    return 1 << (n - 1).bit_length()
