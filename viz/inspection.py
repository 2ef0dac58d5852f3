"""What a recording says about a run: counts, peak, waste, and whether its invariants hold. Read from events alone."""

from dataclasses import dataclass, field

from pagelens.engine import events as ev
from pagelens.engine.events import BlockState
from pagelens.engine.kvtrace import Trace
from pagelens.engine.memory_map import MemoryMap
from pagelens.engine.run_stats import RunStats

Row = tuple[str, str]


@dataclass
class Inspection:
    """The figures of one trace. Blocks and slots; `violations` are sentences, empty when all is well."""

    trace: Trace
    last: MemoryMap
    stats: RunStats
    peak_used: int = 0
    peak_at: int = -1
    peak_running: int = 0
    allocated_slot_steps: int = 0
    filled_slot_steps: int = 0
    violations: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace) -> "Inspection":
        """Fold the whole trace once."""
        report = cls(trace, trace.start(), RunStats(trace.header))
        for event, picture in trace.pictures():
            report.last = picture
            report.stats.apply(event, picture)
            if isinstance(event, ev.StepCommitted):
                report._measure(picture)
            if isinstance(event, ev.StepPlanned | ev.StepCommitted):
                report._check(event, picture)
        return report

    @property
    def waste(self) -> float:
        """Share of the slots in used blocks that held no token, over all steps."""
        return 1 - self.filled_slot_steps / self.allocated_slot_steps if self.allocated_slot_steps else 0.0

    def sections(self) -> list[tuple[str, list[Row]]]:
        """(title, rows) for printing."""
        header, last = self.trace.header, self.last
        steps = last.totals.get("StepCommitted", 0)
        run = [
            ("run", header.run),
            ("model", str(header.model.get("name", ""))),
            ("kernel", str(header.kernel.get("name", ""))),
            ("pool", f"{header.num_blocks} blocks of {header.block_size}"),
            ("events", str(len(self.trace.events))),
            ("steps", str(steps)),
        ]
        memory = [
            ("peak used blocks", f"{self.peak_used} of {header.num_blocks} (event {self.peak_at})"),
            ("peak running sequences", str(self.peak_running)),
            ("used-block slots without a token", f"{self.waste:.1%}"),
            ("used / cached / blank at the end", " / ".join(str(last.count(state)) for state in BlockState)),
        ]
        counts = [(kind, str(count)) for kind, count in sorted(last.totals.items())]
        counts += [(f"{kind} (unknown to this version, skipped)", str(n)) for kind, n in last.unknown_kinds.items()]
        invariants = [("invariants", "hold" if not self.violations else f"{len(self.violations)} broken")]
        return [
            ("Run", run),
            ("Memory", memory),
            ("Work", self.stats.rows()),
            ("Blocks saved by sharing, per request", self._sharing_rows()),
            ("Events", counts),
            ("Checks", invariants + self._violation_rows()),
        ]

    def _sharing_rows(self) -> list[Row]:
        saved = {name: sharing for name, sharing in self.stats.sharing.items() if sharing.peak}
        rows = [(name, f"mean {sharing.mean:.1%}, peak {sharing.peak:.1%}") for name, sharing in saved.items()]
        return rows[:20] or [("none", "no request had several sequences at once")]

    def _violation_rows(self) -> list[Row]:
        return [(f"broken {number}", text) for number, text in enumerate(self.violations[:10], start=1)]

    def _measure(self, picture: MemoryMap) -> None:
        used = picture.count(BlockState.USED)
        if used > self.peak_used:
            self.peak_used, self.peak_at = used, picture.seq
        holding = [view for view in picture.sequences.values() if view.table]
        self.peak_running = max(self.peak_running, sum(view.status == "running" for view in holding))
        filled: dict[int, int] = {}
        for view in holding:
            for index, block in enumerate(view.table):
                if block < 0:  # a block of the host pool
                    continue
                slots = picture.filled_slots(view, index)
                filled[block] = max(filled.get(block, 0), slots)
        self.allocated_slot_steps += used * picture.block_size
        self.filled_slot_steps += sum(filled.values())

    def _check(self, event: ev.Event, picture: MemoryMap) -> None:
        entries = [0] * picture.num_blocks
        for view in picture.sequences.values():
            for block in view.table:
                if block >= 0:  # a negative entry is a block of the host pool
                    entries[block] += 1
        for block, (count, state) in enumerate(zip(picture.ref_count, picture.state, strict=True)):
            if count != entries[block]:
                self._broken(event, f"block {block} has ref_count {count} but is in {entries[block]} table entries")
            if (state is BlockState.USED) != (count > 0):
                self._broken(event, f"block {block} is {state} with ref_count {count}")
            if state is BlockState.CACHED and block not in picture.hash:
                self._broken(event, f"block {block} is cached but not sealed")

    def _broken(self, event: ev.Event, what: str) -> None:
        self.violations.append(f"after event {event.seq}: {what}")
