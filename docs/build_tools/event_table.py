"""The events of a run of `sample_runs.py`, as a table."""

import html

from pagelens.engine import events as ev

from . import sample_runs

SHOW_ZERO = {"block", "index", "start", "ref_count", "source", "destination", "hit_blocks", "free"}
"""Fields in which 0 says something."""


def run(name: str) -> str:
    """The events of one of the runs of sample_runs.py."""
    events = {e.seq: e for e in getattr(sample_runs, name)()}
    rows = ["| seq | step | phase | event | why | cause |", "|--:|--:|---|---|---|--:|"]
    for event in events.values():
        why = event.why.replace("_", " ")
        rows.append(f"| {event.seq} | {event.step} | {event.phase} | {_told(event)} | {why} | {event.cause} |")
    return '<div class="pl-events" markdown>\n\n' + "\n".join(rows) + "\n\n</div>"


def _told(event: ev.Event) -> str:
    values = {name: getattr(event, name) for name in own_fields(type(event))}
    shown = [f"{name} {_short(value)}" for name, value in values.items() if name in SHOW_ZERO or _tells(name, value)]
    return f"**{type(event).__name__}** " + ", ".join(shown)


def _tells(name: str, value: object) -> bool:
    return any(value) if isinstance(value, list) else bool(value) and not name.endswith("_ns")


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) == 32:
        return value[:6] + "…"
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return html.escape(str(value))


def own_fields(kind: type[ev.Event]) -> list[str]:
    """The fields of a kind that not every event has, in their order."""
    common = set(ev.Event.__struct_fields__)
    return [name for name in kind.__struct_fields__ if name not in common]
