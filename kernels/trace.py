"""What each program of a launch really loaded and stored, taken from Triton's interpreter.

The interpreter sends every load and store through one method of its builder, with the address of each lane and a mask.
An address inside a tensor that is watched is turned back into an index; masked lanes are left out:

    (address - tensor.data_ptr()) / itemsize    ->    kv_layer[block, K/V, kv_head, slot, ...]
                                                      block_tables[sequence, entry]

    one tile of 8 keys, blocks of 4          entry read     0    0    0    0    1    1    1    masked
                                             key read from  7.0  7.1  7.2  7.3  2.0  2.1  2.2          block.slot
                                             value          7.0  7.1  7.2  7.3  2.0  2.1  2.2

An entry and a slot give back the position, so the walk is known without asking the block table what it ought to be.
The running softmax is taken where the kernel computes it: its only maximum of floats, and the sum of two columns after
that.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from .availability import interpreter_lock
from .walk import AttentionCall, ProgramWalk, TileRead

Program = tuple[int, int, int]

NO_KEY_YET = -1e29
"""The kernel's running maximum begins far below this, and no score gets there."""


class Access(NamedTuple):
    """One load or store of a program in a watched tensor.

    `lanes` is int64 [lanes, dimensions of the tensor], lane by lane; lanes side by side in a row of a tile that differ
    in the last dimension only count as one.
    """

    tensor: str
    is_store: bool
    lanes: np.ndarray


class Recording:
    """Accesses by program, in their order, and the columns of the running softmax after each tile (as exp2 has it)."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.accesses: defaultdict[Program, list[Access]] = defaultdict(list)
        self.running_max: defaultdict[Program, list[np.ndarray]] = defaultdict(list)
        self.running_sum: defaultdict[Program, list[np.ndarray]] = defaultdict(list)
        self._tensors = tensors

    def note(self, program: Program, addresses: np.ndarray, mask: np.ndarray, is_store: bool) -> None:
        """Take down those of the lanes that lie in a watched tensor."""
        used = addresses[mask].view(np.int64)
        if len(used) == 0:
            return
        lowest, highest = used.min(), used.max()
        for name, tensor in self._tensors.items():
            begin, size = tensor.data_ptr(), tensor.element_size()
            beyond = begin + _extent(tensor) * size
            if highest < begin or lowest >= beyond:
                continue
            rows = np.repeat(np.arange(len(mask)), mask.reshape(len(mask), -1).sum(axis=1))
            breaks = np.flatnonzero((np.diff(used) != size) | (np.diff(rows) != 0))
            ends = np.sort(np.concatenate(([0], breaks, breaks + 1, [len(used) - 1])))  # of lanes side by side
            ends = ends[(used[ends] >= begin) & (used[ends] < beyond)]
            if len(ends) == 0:
                continue
            index = _index(tensor, (used[ends] - begin) // size)
            place = np.column_stack((rows[ends], index[:, :-1]))
            is_new = np.append(True, (np.diff(place, axis=0) != 0).any(axis=1))
            self.accesses[program].append(Access(name, is_store, index[is_new]))


@contextmanager
def recording(**tensors: Tensor) -> Iterator[Recording]:
    """Record the interpreted launches made inside, wherever they touch one of `tensors` (on the CPU, by name).

    Other threads' interpreted launches wait meanwhile.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    notes = Recording(tensors)
    own: Any = type(builder)

    def load(pointers: Any, mask: Any, *others: Any) -> Any:
        notes.note(builder.grid_idx, pointers.data, mask.data, False)
        return own.create_masked_load(builder, pointers, mask, *others)

    def store(pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        notes.note(builder.grid_idx, pointers.data, mask.data, True)
        return own.create_masked_store(builder, pointers, value, mask, *others)

    def maximum(left: Any, right: Any) -> Any:
        result = own.create_maxnumf(builder, left, right)
        notes.running_max[builder.grid_idx].append(result.data[:, 0])
        return result

    def add(left: Any, right: Any) -> Any:
        result = own.create_fadd(builder, left, right)
        tiles = len(notes.running_max[builder.grid_idx])
        if tiles and result.data.shape[1:] == (1,):
            notes.running_sum[builder.grid_idx][tiles - 1 :] = [result.data[:, 0]]
        return result

    overrides = {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_maxnumf": maximum,
        "create_fadd": add,
    }
    with interpreter_lock:
        vars(builder).update(overrides)
        try:
            yield notes
        finally:
            for name in overrides:
                delattr(builder, name)


def walks_read(notes: Recording, call: AttentionCall, row: int, kv_head: int) -> list[ProgramWalk]:
    """The walks of the programs that read row `row` of the table and keys of `kv_head`.

    `notes` are of an attention launch with the arguments `call`, recorded with `kv_layer` and `block_tables`.
    """
    queries = {number: (first, count) for number, first, count in call.query_tiles(row)}
    start, end = call.query_start_loc[row : row + 2].tolist()
    walks = []
    for program, accesses in notes.accesses.items():
        entries = [access.lanes for access in accesses if access.tensor == "block_tables"]
        read = [access.lanes for access in accesses if access.tensor == "kv_layer" and not access.is_store]
        if not entries or entries[0][0, 0] != row or read[0][0, 2] != kv_head:
            continue
        first, count = queries[program[0]]
        rows = slice((count - 1) * call.group, count * call.group)
        softmax = zip(notes.running_max[program], notes.running_sum[program], strict=True)
        keys = [index for index in read if index[0, 1] == 0]
        values = [index for index in read if index[0, 1] == 1]
        tiles = [
            TileRead(
                first=int(entry[0, 1] * call.block_size + key[0, 3]),
                last=int(entry[-1, 1] * call.block_size + key[-1, 3]),
                key_blocks=_blocks(key),
                value_blocks=_blocks(value),
                running_max=[None if m < NO_KEY_YET else m * math.log(2) for m in maxima[rows].tolist()],
                running_sum=sums[rows].tolist(),
            )
            for entry, key, value, (maxima, sums) in zip(entries, keys, values, softmax, strict=True)
        ]
        first_position = int(call.seq_lens[row]) - (end - start) + first
        walks.append(ProgramWalk(list(program), first_position, count, tiles))
    return walks


def _blocks(index: np.ndarray) -> list[int]:
    """The blocks of the lanes, each once, in their order."""
    return list(dict.fromkeys(index[:, 0].tolist()))


def _extent(tensor: Tensor) -> int:
    """Elements from the first to behind the last, those in between that belong to others included."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1


def _index(tensor: Tensor, offset: np.ndarray) -> np.ndarray:
    """Elements' offsets -> their indices, one dimension after the other, that with the largest stride first."""
    index = np.zeros((len(offset), tensor.dim()), dtype=np.int64)
    for axis in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
        if tensor.shape[axis] > 1:
            index[:, axis], offset = np.divmod(offset, tensor.stride(axis))
    return index
