"""RunStats: what a run's events say about it, in figures. A pure reducer: it never sees the engine.

    high-water mark of A.0        0 ............ 40         computed up to here once
    preempted, 16 tokens cached   0 .... 16
    written again                        16 ... 40 -> 43    24 tokens recomputed, 3 new ones

A token is *recomputed* when its keys and values are written once more for the same sequence (a fork takes over what
its parent had). So the tokens lost by preemptions, less what the prefix cache gave back, are counted where the work is
done.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import events as ev
from .event_log import LogHeader
from .events import Event
from .memory_map import MemoryMap


@dataclass
class Sharing:
    """Table entries against distinct blocks: now, and over the steps measured.

    `mean` and `peak` are the paper's memory saved by sharing (section 6.3): blocks saved over blocks without sharing.
    """

    entries: int = 0
    blocks: Counter[int] = field(default_factory=Counter)
    entry_steps: int = 0
    block_steps: int = 0
    peak: float = 0.0

    @property
    def mean(self) -> float:
        """Share of the entries that needed no block of their own, over all steps measured."""
        return (self.entry_steps - self.block_steps) / self.entry_steps if self.entry_steps else 0.0

    def hold(self, block: int) -> None:
        """One more entry points to `block`."""
        self.entries += 1
        self.blocks[block] += 1

    def release(self, block: int) -> None:
        """One entry less."""
        self.entries -= 1
        self.blocks[block] -= 1
        if not self.blocks[block]:
            del self.blocks[block]

    def measure(self) -> None:
        """Add one step."""
        if self.entries:
            self.entry_steps += self.entries
            self.block_steps += len(self.blocks)
            self.peak = max(self.peak, (self.entries - len(self.blocks)) / self.entries)


@dataclass
class RunStats:
    """Figures of a run. Apply each event together with the picture after it, as `Trace.pictures()` gives them.

    Attributes:
        header: of the log; knows what a block weighs.
        looked_up_tokens, hit_tokens: tokens for which the prefix cache was asked, and those that it had.
        computed_tokens, recomputed_tokens: tokens written, and those of them that had been written before.
        lost_tokens: tokens whose keys and values preemptions threw away.
        blocks_out, blocks_in: blocks moved to the host pool, and back.
        blocks_copied: copies on write.
        preemptions: times each request lost its place, by request.
        sharing: memory saved among the sequences of each request, in the steps in which it computed something.
        shared_by_all: the same over all tables, so that prefixes shared between requests count too.
        gaps: how often a sequence's next token came how many steps after the one before; 1 is the next step.
        longest_gap: the longest of these of each sequence.
        waits: steps in which the first of the queue had to wait, by reason.
        first_token_ns, first_token_steps: from arrival to first token, by request.
    """

    header: LogHeader
    looked_up_tokens: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    lost_tokens: int = 0
    blocks_out: int = 0
    blocks_in: int = 0
    blocks_copied: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    sharing: defaultdict[str, Sharing] = field(default_factory=lambda: defaultdict(Sharing))
    shared_by_all: Sharing = field(default_factory=Sharing)
    gaps: Counter[int] = field(default_factory=Counter)
    longest_gap: dict[str, int] = field(default_factory=dict)
    waits: Counter[str] = field(default_factory=Counter)
    first_token_ns: dict[str, int] = field(default_factory=dict)
    first_token_steps: dict[str, int] = field(default_factory=dict)
    _written: dict[str, int] = field(default_factory=dict)
    _last_token: dict[str, int] = field(default_factory=dict)
    _arrived: dict[str, tuple[int, int]] = field(default_factory=dict)
    _preempted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        base = self.header.base
        for name, view in base.sequences.items() if base else ():
            self._written[name] = view.num_computed_tokens
            for block in view.table:
                if block >= 0:
                    self._hold(view.request, block)

    @classmethod
    def of(cls, header: LogHeader, pictures: Iterable[tuple[Event, MemoryMap]]) -> "RunStats":
        """The figures of a whole recording: `RunStats.of(trace.header, trace.pictures())`."""
        stats = cls(header)
        for event, picture in pictures:
            stats.apply(event, picture)
        return stats

    @property
    def hit_rate(self) -> float:
        """Share of the looked-up tokens that the prefix cache had."""
        return self.hit_tokens / self.looked_up_tokens if self.looked_up_tokens else 0.0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block; 0 where a script stands for the model."""
        return int(self.header.model.get("bytes_per_token", 0)) * self.header.block_size

    @property
    def swapped_bytes(self) -> int:
        """Bytes moved between the pools, both ways together."""
        return (self.blocks_out + self.blocks_in) * self.block_bytes

    def rows(self) -> list[tuple[str, str]]:
        """(name, value) for printing."""
        most = self.preemptions.most_common(1)
        peak = max(self.sharing.items(), key=lambda item: item[1].peak, default=("", Sharing()))
        late = max(self.gaps, default=0)
        rows = [
            ("prefix hit rate", f"{self.hit_rate:.1%} ({self.hit_tokens} of {self.looked_up_tokens} tokens)"),
            ("tokens computed", f"{self.computed_tokens}, of them again {self.recomputed_tokens}"),
            ("tokens lost by preemption", str(self.lost_tokens)),
            ("blocks copied on write", str(self.blocks_copied)),
            ("blocks swapped out / in", f"{self.blocks_out} / {self.blocks_in} ({self.swapped_bytes} bytes)"),
            ("preemptions", f"{self.preemptions.total()}" + (f", most {most[0][1]} of {most[0][0]}" if most else "")),
            ("saved by sharing, all tables", f"mean {self.shared_by_all.mean:.1%}, peak {self.shared_by_all.peak:.1%}"),
            ("saved by sharing, best request", f"mean {peak[1].mean:.1%}, peak {peak[1].peak:.1%} {peak[0]}".rstrip()),
            ("longest gap between two tokens", f"{late} steps"),
        ]
        return rows + [(f"steps in which the first in line {why}", str(count)) for why, count in self.waits.items()]

    def apply(self, event: Event, picture: MemoryMap) -> None:
        """Count one event; `picture` is what it led to."""
        if isinstance(event, ev.BlockAllocated | ev.BlockShared):
            self._hold(picture.sequences[event.sequence].request, event.block)
        elif isinstance(event, ev.BlockReleased):
            self.sharing[picture.sequences[event.sequence].request].release(event.block)
            self.shared_by_all.release(event.block)
        elif isinstance(event, ev.TokensWritten):
            self._write(event, picture)
        elif isinstance(event, ev.TokensGenerated):
            self._generate(event, picture)
        elif isinstance(event, ev.StepPlanned):
            if event.blocked:
                self.waits[event.why] += 1
        elif isinstance(event, ev.RequestArrived):
            self._arrived[event.request] = event.step, event.t
        elif isinstance(event, ev.SequenceForked):
            self._written[event.child] = self._written.get(event.parent, 0)
            if event.parent in self._last_token:
                self._last_token[event.child] = self._last_token[event.parent]
        elif isinstance(event, ev.PrefixLookup):
            self.looked_up_tokens += event.num_tokens
            self.hit_tokens += event.hit_tokens
        elif isinstance(event, ev.RequestPreempted):
            self._preempt(event)
        elif isinstance(event, ev.SequenceResumed):
            self._preempted.discard(event.sequence)
        elif isinstance(event, ev.BlockCopied):
            self.blocks_copied += 1
        elif isinstance(event, ev.BlocksSwappedOut):
            self.blocks_out += len(event.blocks)
        elif isinstance(event, ev.BlocksSwappedIn):
            self.blocks_in += len(event.blocks)
        elif isinstance(event, ev.SequenceFinished):
            for known in (self._written, self._last_token):
                known.pop(event.sequence, None)
            self._preempted.discard(event.sequence)

    def _hold(self, request: str, block: int) -> None:
        self.sharing[request].hold(block)
        self.shared_by_all.hold(block)

    def _write(self, event: ev.TokensWritten, picture: MemoryMap) -> None:
        for name, start, count in zip(event.sequences, event.starts, event.counts, strict=True):
            written = self._written.get(name, 0)
            self.computed_tokens += count
            self.recomputed_tokens += max(0, min(start + count, written) - start)
            self._written[name] = max(written, start + count)
        for request in {picture.sequences[name].request for name in event.sequences}:
            self.sharing[request].measure()
        self.shared_by_all.measure()

    def _generate(self, event: ev.TokensGenerated, picture: MemoryMap) -> None:
        for name in event.sequences:
            if name in self._last_token:
                gap = event.step - self._last_token[name]
                if gap:  # 0: forked in this step, with its first token
                    self.gaps[gap] += 1
                    self.longest_gap[name] = max(gap, self.longest_gap.get(name, 0))
            else:
                request = picture.sequences[name].request
                if request in self._arrived:
                    step, t = self._arrived.pop(request)
                    self.first_token_steps[request] = event.step - step
                    self.first_token_ns[request] = event.t - t
            self._last_token[name] = event.step

    def _preempt(self, event: ev.RequestPreempted) -> None:
        self.lost_tokens += event.lost_tokens
        if not self._preempted.issuperset(event.sequences):  # else it had lost its place before, and now its blocks
            self.preemptions[event.request] += 1
        self._preempted.update(event.sequences)
