"""Waste: which slots of a memory hold tokens, and why the others do not, step by step.

A slot holds one token's keys and values. Its split is that of the PagedAttention paper (SOSP 2023), figure 2:

    two blocks of a sequence, one free   [t t t t|t t r r|f f f f]     here it still writes two tokens
    the same when it has ended early     [t t t t|t t u u|f f f f]
    one reservation, one hole            [t t t t t r u u|x x x x]     contiguous: a request of 6 slots waits

    t  tokens       hold a token's keys and values
    r  reservation  will hold one before they are given back
    u  unfilled     never will: internal fragmentation
    x  external     free and enough for the request that waits first, but not in one piece: external fragmentation
    f  free         the rest; in a paged pool blank and cached blocks, and never an x: any free block will do

A step is measured once its tokens are written and before anything that ends with it is given back: the moment at which
it takes most memory. Whether an empty slot was a reservation is known only when it is given back, so the splits of a
run are read at its end.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from . import events as ev
from .events import Event, Why
from .memory_map import MemoryMap


@dataclass(frozen=True, slots=True)
class SlotSplit:
    """Slots of a memory in one step, or summed over steps."""

    tokens: int = 0
    reservation: int = 0
    unfilled: int = 0
    external: int = 0
    free: int = 0

    def __add__(self, other: "SlotSplit") -> "SlotSplit":
        return SlotSplit(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def total(self) -> int:
        """All slots."""
        return self.allocated + self.external + self.free

    @property
    def allocated(self) -> int:
        """Slots that are somebody's."""
        return self.tokens + self.reservation + self.unfilled

    @property
    def wasted_share(self) -> float:
        """Share of the allocated slots that hold no token."""
        return 1 - self.tokens / self.allocated if self.allocated else 0.0

    def shares(self) -> dict[str, float]:
        """Each part of the split as a share of all slots, by name."""
        names = ("tokens", "reservation", "unfilled", "external", "free")
        return {name: getattr(self, name) / max(1, self.total) for name in names}


@dataclass(frozen=True, slots=True)
class StepWaste:
    """The split in step number `step`; `waits_for_memory` if the first in line found no room in it."""

    step: int
    waits_for_memory: bool
    split: SlotSplit


def sum_of(steps: Iterable[StepWaste], while_waiting: bool = False) -> SlotSplit:
    """The splits of a run added up, over all steps or over those in which somebody waited for memory."""
    total = SlotSplit()
    for step in steps:
        if step.waits_for_memory or not while_waiting:
            total += step.split
    return total


class WasteMeter:
    """Measures the paged pool: a pure reducer over events, O(1) for each block or sequence that an event names.

    `picture` is the state before the first event; `apply` takes each event with the picture after it, as
    `Trace.pictures()` gives them. `most_unfilled` is the largest number of empty slots that any sequence ever held:
    at most block_size - 1, since a table grows only for tokens that are written in the same step.
    """

    def __init__(self, picture: MemoryMap) -> None:
        self.most_unfilled = 0
        self._size = picture.block_size
        self._num_slots = picture.num_blocks * picture.block_size
        self._filled: dict[int, int] = {}
        self._held_since: dict[int, int] = {}
        self._on_host: dict[int, int] = {}
        self._tokens = 0
        self._waits_for_memory = False
        self._measured: list[tuple[int, bool, int, int]] = []  # step, waits, allocated slots, tokens
        self._never_filled: defaultdict[int, int] = defaultdict(int)  # change at the i-th measured step
        for view in picture.sequences.values():
            for index, block in enumerate(view.table):
                slots = picture.filled_slots(view, index)
                if block < 0:
                    self._on_host[-1 - block] = slots
                else:
                    self._take(block, max(slots, self._filled.get(block, 0)))

    def apply(self, event: Event, picture: MemoryMap) -> None:
        """Count one event; `picture` is what it led to."""
        if isinstance(event, ev.BlockAllocated):
            self._take(event.block, 0)
        elif isinstance(event, ev.BlockShared):
            if event.block not in self._filled:  # it was cached, so it is full
                self._take(event.block, self._size)
        elif isinstance(event, ev.BlockReleased):
            if event.ref_count == 0:
                self._give_back(event.block)
        elif isinstance(event, ev.BlocksSwappedOut):
            for block, host_block in zip(event.blocks, event.host_blocks, strict=True):
                self._on_host[host_block] = self._filled[block]
        elif isinstance(event, ev.BlocksSwappedIn):
            for block, host_block in zip(event.blocks, event.host_blocks, strict=True):
                self._take(block, self._on_host.pop(host_block))
        elif isinstance(event, ev.StepPlanned):
            self._waits_for_memory = event.why == Why.WAITS_FOR_BLOCKS
        elif isinstance(event, ev.TokensWritten):
            self._write(event, picture)
            allocated = len(self._filled) * self._size
            self._measured.append((event.step, self._waits_for_memory, allocated, self._tokens))

    def steps(self) -> list[StepWaste]:
        """The split of every step measured so far; what is still held counts as reservation."""
        steps, unfilled = [], 0
        for number, (step, waits, allocated, tokens) in enumerate(self._measured):
            unfilled += self._never_filled[number]
            split = SlotSplit(tokens, allocated - tokens - unfilled, unfilled, 0, self._num_slots - allocated)
            steps.append(StepWaste(step, waits, split))
        return steps

    def _write(self, event: ev.TokensWritten, picture: MemoryMap) -> None:
        size = self._size
        for name, start, count in zip(event.sequences, event.starts, event.counts, strict=True):
            table, end = picture.sequences[name].table, start + count
            for index in range(start // size, (end - 1) // size + 1):
                self._take(table[index], min(size, end - index * size))
            self.most_unfilled = max(self.most_unfilled, len(table) * size - end)

    def _take(self, block: int, filled: int) -> None:
        self._tokens += filled - self._filled.get(block, 0)
        self._filled[block] = filled
        self._held_since.setdefault(block, len(self._measured))

    def _give_back(self, block: int) -> None:
        filled, since = self._filled.pop(block), self._held_since.pop(block)
        self._tokens -= filled
        self._never_filled[since] += self._size - filled
        self._never_filled[len(self._measured)] -= self._size - filled
