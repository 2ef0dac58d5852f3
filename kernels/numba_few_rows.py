# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of a few tokens with weights that oneDNN has packed, compiled by Numba.

With one token, the work is to read the weight once, and oneDNN does not read as fast as memory would let it. It packs a
weight [outputs, inputs] in panels of some outputs, in AVX-512 code of 64:

    panel 0    input 0    outputs  0  1  2 … 63        float32: a word is one number of the weight
               input 1    outputs  0  1  2 … 63        bfloat16: a word is two, of this input and the next
               …
    panel 1    input 0    outputs 64 65 … 127

so that reading on and on is all there is to do, with a sum for each output of a panel. How it packs is its own affair
and may change, so `tiles_of` looks whether the words lie as drawn, and else these products are left to oneDNN.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from numba import prange, types
from numba.extending import overload
from torch import Tensor

from .numba_numbers import compiled, launch, narrow, num_threads, numbers, widen

MOST_ROWS = 3
"""Above, oneDNN is faster: then the work is to multiply, and it has instructions for bfloat16."""

LANES = (64, 48, 32, 24, 16, 8)
WORDS_PER_THREAD = 1 << 15

Tiles = np.ndarray[Any, Any]
"""[panels, words, lanes], a view of the memory of the packed weight; more words than inputs may fill it up."""


def tiles_of(packed: Tensor, weight: Tensor) -> Tiles | None:
    """The words of a packed weight, or None if they do not lie as drawn above.

    Args:
        packed: the opaque tensor; it must outlive the result.
        weight: what was packed, [outputs, inputs], float32 or bfloat16.
    """
    outputs, inputs = weight.shape
    per_word = 4 // weight.dtype.itemsize
    if inputs % per_word or not outputs or not hasattr(torch.ops.mkldnn, "data_ptr"):
        return None
    rows = numbers(weight.contiguous()).view(np.float32 if per_word == 1 else np.int32)
    words = rows.shape[1]
    size: int = torch.ops.mkldnn._nbytes(packed) // 4
    address: int = torch.ops.mkldnn.data_ptr(packed)
    memory = np.ctypeslib.as_array((ctypes.c_int32 * size).from_address(address)).view(rows.dtype)
    for lanes in LANES:
        panels = -(-outputs // lanes)
        if size % (panels * lanes) or size < panels * lanes * words:
            continue
        tiles, last = memory.reshape(panels, -1, lanes), (panels - 1) * lanes
        found = tiles[0, :words, :outputs].T, tiles[-1, :words, : outputs - last].T
        if np.array_equal(found[0], rows[:lanes]) and np.array_equal(found[1], rows[last:]):
            return tiles
    return None


def multiply(x: Tensor, tiles: Tiles, bias: Tensor | None, outputs: int) -> Tensor:
    """x [rows, inputs] times a weight [outputs, inputs], plus bias [outputs], all but the weight of one dtype."""
    x = x.contiguous()
    out = x.new_empty(len(x), outputs)
    parts = max(1, min(num_threads(), tiles.size // WORDS_PER_THREAD))
    words = x.shape[1] * x.itemsize // 4
    launch(_multiply, numbers(out), numbers(x), tiles, words, numbers(x.new_empty(0) if bias is None else bias), parts)
    return out


def times(word: Any, line: Any, index: int) -> Any:
    """What a word adds to the product with a line of inputs; for use in kernels only."""
    raise NotImplementedError


@overload(times)
def _times(word, line, index):
    if word == types.int32:
        return lambda word, line, index: (
            np.int32(word << 16).view(np.float32) * line[2 * index]
            + np.int32(word & -65536).view(np.float32) * line[2 * index + 1]
        )
    return lambda word, line, index: word * line[index]


def compile_for(dtype: torch.dtype) -> None:
    """Compile for weights of this dtype, or load what an earlier process compiled."""
    if dtype is not torch.float16:
        word = np.float32 if dtype is torch.float32 else np.int32
        multiply(torch.zeros((1, 2), dtype=dtype), np.zeros((1, 2, 8), word), None, 1)


@compiled(parallel=True)
def _multiply(out, x, tiles, words, bias, parts):
    (rows, inputs), (panels, _, lanes), outputs = x.shape, tiles.shape, out.shape[1]
    for part in prange(parts):
        lines, sums = np.empty((rows, inputs), np.float32), np.empty((rows, lanes), np.float32)
        for row in range(rows):
            for i in range(inputs):
                lines[row, i] = widen(x[row, i])
        for panel in range(panels * part // parts, panels * (part + 1) // parts):
            sums[:] = 0
            for index in range(words):
                tile = tiles[panel, index]
                for row in range(rows):
                    line, total = lines[row], sums[row]
                    for lane in range(lanes):
                        total[lane] += times(tile[lane], line, index)
            first = panel * lanes
            for row in range(rows):
                for lane in range(min(lanes, outputs - first)):
                    added = widen(bias[first + lane]) if len(bias) else np.float32(0)
                    out[row, first + lane] = narrow(sums[row, lane] + added, out)
