"""The memory picture as lines of text, for a terminal: read from a MemoryMap and nothing else."""

from pagelens.engine.events import BlockState
from pagelens.engine.memory_map import MemoryMap, SequenceView

WIDEST = 100


def overview(picture: MemoryMap, queued: list[str]) -> list[str]:
    """Counts, a line per unfinished sequence, what is pending; `queued` requests join when the step is over."""
    counts = ", ".join(f"{picture.count(state)} {state}" for state in BlockState)
    lines = [f"blocks    {counts}, of {picture.num_blocks} with {picture.block_size} tokens"]
    views = [view for view in picture.sequences.values() if view.status != "finished"]
    for status in ("running", "preempted", "waiting"):
        for view in (view for view in views if view.status == status):
            lines.append(f"{status:<9} {_sequence(view, picture)}")
    if picture.blocked is not None and picture.blocked.sequence:
        lines.append(f"blocked   {_blocked(picture)}")
    if picture.pending_copies:
        copies = ", ".join(f"{source} -> {destination}" for source, destination in picture.pending_copies)
        lines.append(f"pending   copies {copies}: no byte has moved yet")
    if queued:
        lines.append(f"queued    {', '.join(queued)}: will join when this step is over")
    return lines


def block(picture: MemoryMap, number: int) -> list[str]:
    """State, holders and content of one block."""
    state, count = picture.state[number], picture.ref_count[number]
    lines = [f"block {number} is {state}" + (f", in {count} table{'s' if count > 1 else ''}" if count else "")]
    for name, index in picture.holders(number):
        view = picture.sequences[name]
        start = index * picture.block_size
        filled = picture.filled_slots(view, index)
        texts = view.texts[start : start + filled] or []
        lines.append(f"  logical block {index} of {name}, {filled} of {picture.block_size} slots: {_content(texts)}")
    if number in picture.hash:
        held = "" if count else f": {_content(picture.sealed_text.get(number, []))}"
        lines.append(f"  found by its content, hash {picture.hash[number][:12]}{held}")
    for source, destination in picture.pending_copies:
        if number in (source, destination):
            lines.append(f"  pending copy {source} -> {destination}: no byte has moved yet")
    return lines


def _sequence(view: SequenceView, picture: MemoryMap) -> str:
    tokens = f"{view.num_computed_tokens} of {len(view.token_ids)} tokens computed"
    computes = picture.scheduled.get(view.sequence)
    now = f", {computes} now" if computes else ""
    table = " ".join(f"host {-1 - entry}" if entry < 0 else str(entry) for entry in view.table)
    return _clip(f"{view.sequence:<5} [{table}] {tokens}{now}  {_content(view.texts[-12:])}")


def _blocked(picture: MemoryMap) -> str:
    blocked = picture.blocked
    assert blocked is not None
    why = blocked.why.replace("_", " ")
    numbers = (
        f": needs {blocked.needs}, free {blocked.free}, watermark {blocked.watermark}, promised {blocked.promised}"
    )
    return f"{blocked.sequence} {why}{numbers if blocked.needs else ''}"


def _content(texts: list[str]) -> str:
    return repr("".join(texts)) if any(texts) else ""


def _clip(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
