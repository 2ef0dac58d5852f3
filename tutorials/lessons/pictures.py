"""Pictures of a run: the memory at one event, and the steps as a timeline. Drawn from events and nothing else."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from drawing import WIDTH, Drawing

from pagelens.engine import events as ev
from pagelens.engine.events import BlockState, Event
from pagelens.engine.memory_map import MemoryMap, SequenceView

LANES = "abcd"
GAP = 12.0
BLOCK_HEIGHT = 46.0
ROW_HEIGHT = 84.0

SlotLabel = Callable[[SequenceView, int], str]
"""What to write into the slot of a position of a sequence."""


class Box(NamedTuple):
    """Where a block is drawn."""

    x: float
    y: float
    width: float
    height: float


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour class for each sequence, in order."""
    return {name: LANES[number % len(LANES)] for number, name in enumerate(names)}


def token_text(view: SequenceView, position: int) -> str:
    """The token's text, or its id where there is no tokenizer."""
    text = view.texts[position] if position < len(view.texts) else ""
    return _visible(text) if text else str(view.token_ids[position])


def memory(
    picture: MemoryMap,
    title: str,
    *,
    label: SlotLabel = token_text,
    blocks: Iterable[int] | None = None,
    per_row: int = 4,
    num_host_blocks: int = 0,
    colours: dict[str, str] | None = None,
) -> str:
    """Tables above, blocks below, an arrow for each copy that is planned and not made yet.

    `blocks` are the physical blocks to show, all by default.
    """
    return _Memory(
        drawing=Drawing(title),
        picture=picture,
        views=[view for view in picture.sequences.values() if view.status != "finished"],
        colours=colours or colours_of(picture.sequences),
        label=label,
        per_row=per_row,
    ).draw(range(picture.num_blocks) if blocks is None else blocks, num_host_blocks)


@dataclass
class _Memory:
    drawing: Drawing
    picture: MemoryMap
    views: list[SequenceView]
    colours: dict[str, str]
    label: SlotLabel
    per_row: int

    def draw(self, blocks: Iterable[int], num_host_blocks: int) -> str:
        y = -8.0
        if self.views:
            self.drawing.text(10, 18, "BLOCK TABLES", "head")
            y = 28.0
        for view in self.views:
            self._table(view, y)
            y += 34
        self.drawing.text(10, y + 26, "PHYSICAL BLOCKS", "head")
        boxes = {block: self._block(block, number, y + 38) for number, block in enumerate(blocks)}
        for source, destination in self.picture.pending_copies:
            _copy_arrow(self.drawing, boxes[source], boxes[destination])
        if num_host_blocks:
            y = self.drawing.height + 26
            self.drawing.text(10, y, "HOST POOL", "head")
            for block in range(num_host_blocks):
                self._host_block(block, y + 12)
        return self.drawing.svg()

    def _table(self, view: SequenceView, y: float) -> None:
        self.drawing.rect(10, y + 4, 6, 20, self.colours[view.sequence], 2)
        self.drawing.text(24, y + 19, view.sequence, "strong")
        x = 72.0
        for block in view.table:
            if block < 0:
                self.drawing.hatched(x, y, 34, 28, rounded=4)
            else:
                self.drawing.rect(x, y, 34, 28, "box", 4)
            self.drawing.text(x + 17, y + 19, f"h{-1 - block}" if block < 0 else str(block), "mono mid")
            x += 40
        count = f"{view.num_computed_tokens} tokens"
        self.drawing.text(x + 6, y + 19, count if view.status == "running" else view.status, "small")

    def _place(self, number: int, y: float) -> Box:
        width = (WIDTH - 20 - GAP * (self.per_row - 1)) / self.per_row
        row, column = divmod(number, self.per_row)
        return Box(10 + column * (width + GAP), y + row * ROW_HEIGHT, width, BLOCK_HEIGHT)

    def _block(self, block: int, number: int, y: float) -> Box:
        box = self._place(number, y)
        self.drawing.rect(*box, "box", 6)
        to_come = block in {destination for _, destination in self.picture.pending_copies}
        holders = [] if to_come else [(self.picture.sequences[name], i) for name, i in self.picture.holders(block)]
        cached = self.picture.state[block] is BlockState.CACHED
        for offset in range(self.picture.block_size):
            filled = [(view, i) for view, i in holders if self.picture.filled_slots(view, i) > offset]
            self._slot(box, offset, filled, self.picture.sealed_text.get(block, []) if cached else None)
        name, references = f"block {block}", self.picture.ref_count[block]
        if references > 1:
            self.drawing.rect(box.x - 3, box.y - 3, box.width + 6, box.height + 6, "shared", 8)
            name += f" · in {references} tables"
        elif cached:
            name += " · cached"
        self.drawing.text(box.x + box.width / 2, box.y + box.height + 17, name, "small mid")
        return box

    def _host_block(self, block: int, y: float) -> None:
        box = self._place(block, y)
        self.drawing.rect(*box, "box", 6)
        held = [(view, view.table.index(-1 - block)) for view in self.views if -1 - block in view.table]
        for offset in range(self.picture.block_size):
            self._slot(box, offset, [(v, i) for v, i in held if self.picture.filled_slots(v, i) > offset], None)
        self.drawing.text(box.x + box.width / 2, box.y + box.height + 17, f"host block h{block}", "small mid")

    def _slot(self, box: Box, offset: int, filled: list[tuple[SequenceView, int]], cached: list[str] | None) -> None:
        """A band for each holder whose tokens reach this far; the text is one, since theirs are equal."""
        size = self.picture.block_size
        width, height = (box.width - 8) / size, box.height - 8
        x, y = box.x + 4 + offset * width, box.y + 4
        text, css = "", "mid on"
        if filled:
            band = height / len(filled)
            for number, (view, _) in enumerate(filled):
                colour, rounded = self.colours[view.sequence], 2 if len(filled) == 1 else 0
                self.drawing.rect(x + 1, y + number * band, width - 2, band, colour, rounded)
            view, index = filled[0]
            text = self.label(view, index * size + offset)
        elif cached is not None:
            self.drawing.hatched(x + 1, y, width - 2, height, rounded=2)
            text, css = _visible(cached[offset]) if cached[offset : offset + 1] not in ([], [""]) else "", "mid"
        else:
            self.drawing.rect(x + 1, y, width - 2, height, "blank", 2)
        if text:
            size_of_text = max(9.0, min(12.0, width / len(text) * 1.65))
            self.drawing.text(x + width / 2, y + height / 2 + 4, _fit(text, width), css, size_of_text)


def _copy_arrow(drawing: Drawing, source: Box, destination: Box) -> None:
    x0, x1 = source.x + source.width / 2, destination.x + destination.width / 2
    if source.y == destination.y:
        lift = 20 + abs(x1 - x0) / 30
        top = source.y - lift
        drawing.arrow(f"M{x0:g} {source.y - 4:g}C{x0 + 30:g} {top:g} {x1 - 30:g} {top:g} {x1:g} {source.y - 3:g}")
    else:
        drawing.arrow(f"M{x0:g} {source.y + source.height + 24:g}L{x1:g} {destination.y - 4:g}")


def _visible(text: str) -> str:
    return text.strip() or ("⏎" if "\n" in text else "␣")


def _fit(text: str, width: float) -> str:
    room = max(1, int(width / 4.9))
    return text if len(text) <= room else text[: room - 1] + "…"


def timeline(events: list[Event], title: str, steps: int = 0) -> str:
    """Steps from left to right, a row for each sequence; a cell says how many tokens the step computed for it.

    Thin outline: waits. Hatched: preempted. Grey: has its blocks and sits the step out. Nothing: not alive. `steps`
    widens the picture's time, so that two of them have the same scale.
    """
    drawing = Drawing(title)
    rows = list(_born(events))
    steps = max(steps, 1 + max(e.step for e in events if isinstance(e, ev.StepCommitted)))
    left = 92.0
    width = min(34.0, (WIDTH - left - 10) / steps)
    every = max(1, round(26 / width))
    drawing.text(10, 18, "STEP", "head")
    for step in range(0, steps, every):
        drawing.text(left + (step + 0.5) * width, 18, str(step), "small mid", 11.5)
    status: dict[str, str] = {}
    for event in events:
        _follow(status, event)
        if isinstance(event, ev.StepPlanned):
            tokens = dict(zip(event.sequences, event.num_tokens, strict=True))
            for row, name in enumerate(rows):
                cell = Box(left + event.step * width, 28.0 + row * 26, width, 20)
                _cell(drawing, cell, LANES[row % 4], tokens.get(name, 0), status.get(name, ""))
    for number, name in enumerate(rows):
        drawing.text(10, 28 + number * 26 + 15, name, "strong")
    return drawing.svg()


def _cell(drawing: Drawing, cell: Box, colour: str, num_tokens: int, status: str) -> None:
    x, y, width, height = cell
    if num_tokens:
        drawing.rect(x + 0.5, y, width - 1, height, colour, 2)
        if width >= 11 or num_tokens > 1:
            drawing.text(x + width / 2, y + 14, str(num_tokens), "mid on", min(11, width * 0.62))
    elif status == "waiting":
        drawing.rect(x + 0.5, y + 8, width - 1, 4, "box", 1)
    elif status == "preempted":
        drawing.hatched(x + 0.5, y, width - 1, height, rounded=2)
    elif status == "running":
        drawing.rect(x + 0.5, y, width - 1, height, "blank", 2)


def _born(events: list[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, ev.RequestArrived):
            yield event.sequence
        elif isinstance(event, ev.SequenceForked):
            yield event.child


def _follow(status: dict[str, str], event: Event) -> None:
    if isinstance(event, ev.RequestArrived):
        status[event.sequence] = "waiting"
    elif isinstance(event, ev.SequenceForked):
        status[event.child] = event.status
    elif isinstance(event, ev.SequenceAdmitted | ev.SequenceResumed):
        status[event.sequence] = "running"
    elif isinstance(event, ev.RequestPreempted):
        status.update(dict.fromkeys(event.sequences, "preempted"))
    elif isinstance(event, ev.SequenceFinished):
        status[event.sequence] = "finished"


def bars(rows: dict[str, dict[str, float]], title: str, classes: dict[str, str], notes: dict[str, str]) -> str:
    """A stacked bar for each row, of shares that add up to 1. `classes` are a part's colour, or "hatch"; in order.

    `notes` are written behind a row's bar.
    """
    drawing = Drawing(title)
    x = 10.0
    for part, css in classes.items():
        _swatch(drawing, Box(x, 8, 14, 14), css)
        drawing.text(x + 20, 19, part, "small")
        x += 36 + 7 * len(part)
    left, room = 128.0, WIDTH - 128.0 - 90
    for number, (name, shares) in enumerate(rows.items()):
        y, x = 38.0 + number * 38, left
        drawing.text(10, y + 19, name, "strong")
        for part, css in classes.items():
            width = shares[part] * room
            if width >= 0.5:
                _swatch(drawing, Box(x, y, width, 28), css)
                if width > 34:
                    colour = "mid on" if css in LANES else "mid"
                    drawing.text(x + width / 2, y + 19, f"{shares[part]:.0%}", colour, 12)
            x += width
        drawing.text(left + room + 10, y + 19, notes.get(name, ""), "small")
    return drawing.svg()


def strip(pieces: list[tuple[int, int, int, int, str]], num_slots: int, title: str) -> str:
    """One line of contiguous memory: (start, tokens, will be used, reserved, name) of each piece; the rest is free."""
    drawing = Drawing(title)
    scale = (WIDTH - 20) / num_slots
    drawing.text(10, 18, f"{num_slots} SLOTS IN A ROW", "head")
    drawing.rect(10, 30, num_slots * scale, 44, "blank", 2)
    for number, (start, tokens, used, reserved, name) in enumerate(pieces):
        x = 10 + start * scale
        drawing.rect(x, 30, reserved * scale, 44, "box", 2)
        drawing.hatched(x, 30, used * scale, 44, rounded=2)
        drawing.rect(x, 30, tokens * scale, 44, LANES[number % 4], 2)
        drawing.text(x + reserved * scale / 2, 92, name, "small mid")
    return drawing.svg()


def _swatch(drawing: Drawing, box: Box, css: str) -> None:
    if css == "hatch":
        drawing.hatched(*box, rounded=2)
    else:
        drawing.rect(*box, css, 2)
