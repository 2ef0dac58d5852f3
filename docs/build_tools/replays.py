"""Recordings in the pages: the runs of the lessons, played by the same scripts as the live page, also from file://.

The viewer is one script and one stylesheet for the whole site; a recording lies in the page that shows it.
"""

import base64
import gzip
import html
from typing import Any

from pagelens.engine.events import EVENT_TYPES
from pagelens.engine.kvtrace import recording
from pagelens.viz import scripts

from . import lessons

SCRIPT, STYLES = "assets/pagelens/viewer.js", "assets/pagelens/viewer.css"


def replay(what: str) -> str:
    """A viewer of what `lesson.function` ran, which returns something with a `log`.

    `02_copy_on_write.three_samples@BlockCopied` stands at the first event of a kind.
    """
    name, _, kind = what.partition("@")
    lesson, function = name.split(".")
    log = getattr(lessons.module(lesson), function)().log
    if kind and kind not in EVENT_TYPES:
        raise ValueError(f"{what} names {kind}, which is no kind of event")
    packed = base64.b64encode(gzip.compress(recording(log), mtime=0)).decode("ascii")
    label = html.escape(f"{lesson.replace('_', ' ')}: {log.next_seq} events")
    return (
        f'<div class="pagelens replay" data-at="{kind}" aria-label="{label}">\n<div class="viewer"></div>\n'
        f'<script type="application/octet-stream">{packed}</script>\n</div>'
    )


def assets() -> dict[str, str]:
    """The viewer's files by the name they have in the site."""
    code = [(scripts.STATIC / name).read_text(encoding="utf-8") for name in (*scripts.VIEWER_SCRIPTS, "replays.js")]
    return {SCRIPT: "\n".join(code), STYLES: (scripts.STATIC / "pagelens.css").read_text(encoding="utf-8")}


def add_assets(config: Any) -> None:
    """Have every page load them."""
    config.extra_javascript.append(SCRIPT)
    config.extra_css.append(STYLES)
