"""A program's walk along a block table, tile by tile, and what that walk must be according to the table.

    table of the sequence         [7, 2, 9]            blocks of 4 slots, 10 tokens of context
    tile 0   positions 0 … 3      block 7              running max 1.2   running sum 2.9
    tile 1   positions 4 … 7      block 2              running max 3.0   running sum 0.48 + 1.7
    tile 2   positions 8 … 9      block 9              the two used slots only

``trace.py`` reads the same walk off a launch under the interpreter. Nothing in this file needs triton to be installed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .launch import LaunchConfig


@dataclass(frozen=True, slots=True)
class TileRead:
    """One tile of keys: positions `first` … `last` of the context, and the blocks that their keys and values lie in.

    `running_max` and `running_sum` are the softmax after this tile, for the program's last query token, one number for
    each head of the group: the largest score (q · k · scale) so far, and the sum of exp(score - running_max). None:
    that token sees no key yet.
    """

    first: int
    last: int
    key_blocks: list[int]
    value_blocks: list[int]
    running_max: list[float | None]
    running_sum: list[float]


@dataclass(frozen=True, slots=True)
class ProgramWalk:
    """What one program reads: it serves `num_queries` tokens from position `first_position` on.

    `program` is its place in the grid of the launch.
    """

    program: list[int]
    first_position: int
    num_queries: int
    tiles: list[TileRead]

    def blocks(self) -> set[int]:
        """Every block of which it reads a key or a value."""
        return {block for tile in self.tiles for block in tile.key_blocks + tile.value_blocks}


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one ``paged_attention``, as ``reference.py`` explains them; `config` is None without tiles."""

    query: Tensor
    kv_layer: Tensor
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    config: LaunchConfig | None = None

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self.kv_layer.shape[3]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query.shape[1] // self.kv_layer.shape[2]

    def query_tiles(self, row: int) -> Iterator[tuple[int, int, int]]:
        """The tiles of sequence `row`: number in the grid, first query token within the sequence, query tokens."""
        start, end = self.query_start_loc[row : row + 2].tolist()
        if self.config is None:
            yield row, 0, end - start
            return
        block_q = self.config.block_q
        for first in range(0, end - start, block_q):
            yield start // block_q + row + first // block_q, first, min(block_q, end - start - first)


def walks_by_table(call: AttentionCall, row: int, kv_head: int, tile: int = 0) -> list[ProgramWalk]:
    """The walks of all programs of sequence `row` and `kv_head`, derived from the block table.

    The running softmax is computed here once more, in torch. `tile` keys at a time; 0: as `call.config` says, and
    without one all keys at once. A split that gets no key has no walk.
    """
    splits = call.config.num_splits if call.config else 1
    context = int(call.seq_lens[row])
    start, end = call.query_start_loc[row : row + 2].tolist()
    tile = tile or (call.config.tile if call.config else context)
    walks = []
    for number, first, num_queries in call.query_tiles(row):
        first_position = context - (end - start) + first
        begin = max(first_position - (call.sliding_window or first_position + 1) + 1, 0)
        beyond = min(first_position + (call.config.block_q if call.config else num_queries), context)
        per_split = ((beyond - begin) // (tile * splits) + 1) * tile
        for split in range(splits):
            keys = range(begin + split * per_split, min(begin + (split + 1) * per_split, beyond))
            if keys:
                token = start + first + num_queries - 1
                tiles = _tiles(call, row, kv_head, keys, tile, token, first_position + num_queries - 1)
                program = [number, kv_head, split] if call.config else [number]
                walks.append(ProgramWalk(program, first_position, num_queries, tiles))
    return walks


def _tiles(
    call: AttentionCall, row: int, kv_head: int, keys: range, tile: int, token: int, position: int
) -> list[TileRead]:
    """The tiles over `keys`, with the running softmax of query `token`, which is at `position` of the context."""
    query = call.query[token, kv_head * call.group : (kv_head + 1) * call.group].float()
    running_max = query.new_full((call.group,), float("-inf"))
    running_sum = query.new_zeros(call.group)
    tiles = []
    for first in range(keys.start, keys.stop, tile):
        positions = torch.arange(first, min(first + tile, keys.stop), device=query.device)
        blocks = call.block_tables[row, positions // call.block_size].long()
        seen = positions <= position
        if call.sliding_window is not None:
            seen &= positions > position - call.sliding_window
        key = call.kv_layer[blocks, 0, kv_head, positions % call.block_size].float()
        scores = query @ key.T * call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        scores = scores.masked_fill(~seen, float("-inf"))
        new_max = torch.maximum(running_max, scores.amax(1))
        if seen.any():
            running_sum = running_sum * (running_max - new_max).exp() + (scores - new_max[:, None]).exp().sum(1)
            running_max = new_max
        order = list(dict.fromkeys(blocks.tolist()))
        maxima = [None if value == float("-inf") else value for value in running_max.tolist()]
        tiles.append(TileRead(first, int(positions[-1]), order, list(order), maxima, running_sum.tolist()))
    return tiles
