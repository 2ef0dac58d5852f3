"""The page's scripts, in the order in which they are loaded, and a digest of all that is served with them."""

import hashlib
from pathlib import Path

STATIC = Path(__file__).parent / "static"

VIEWER_SCRIPTS = (
    "elements.js",
    "memory_map.js",
    "block_view.js",
    "contiguous.js",
    "run_tally.js",
    "step_log.js",
    "history.js",
    "recording.js",
    "selection.js",
    "sentences.js",
    "headline.js",
    "theme.js",
    "block_looks.js",
    "glyphs.js",
    "legend.js",
    "map_view.js",
    "map_gestures.js",
    "minimap.js",
    "host_lane.js",
    "map_motion.js",
    "map_painter.js",
    "map_picture.js",
    "block_sheet.js",
    "block_map.js",
    "address.js",
    "causes.js",
    "block_detail.js",
    "chips.js",
    "status_words.js",
    "token_text.js",
    "tables.js",
    "viewer_clock.js",
    "panels.js",
    "timeline_paint.js",
    "timeline_legend.js",
    "timeline_overview.js",
    "timeline_words.js",
    "timeline.js",
    "event_matches.js",
    "event_filter.js",
    "event_rows.js",
    "event_list.js",
    "counter_series.js",
    "counters.js",
    "memory_bars.js",
    "trace_picker.js",
    "kernel_words.js",
    "kernel_view.js",
    "viewer.js",
)
"""A viewer of a recording, which needs no server: also what an exported file holds."""

PAGE_SCRIPTS = (
    "feed.js",
    "connection.js",
    "live_source.js",
    "replay.js",
    "controls.js",
    "kv_memory.js",
    "calculator.js",
    "questions.js",
    "tour.js",
    "ab.js",
    "track.js",
    "player_bar.js",
    "player.js",
    "scenarios.js",
    "about.js",
    "page.js",
    "instructor.js",
    "model_form.js",
    "chat.js",
)
"""What follows a running engine and talks to it."""

ALL = VIEWER_SCRIPTS + PAGE_SCRIPTS


def version() -> str:
    """Changes whenever one of the files changes, so that no browser keeps an old one."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()))).hexdigest()[:12]
