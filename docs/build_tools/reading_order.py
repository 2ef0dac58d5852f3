"""The reading order of the source, as a table that the build makes from the files."""

import ast
import logging
import re
from pathlib import Path

log = logging.getLogger("mkdocs.hooks.pagelens")

ROOT = Path(__file__).parents[2]
CORE_LIMIT = 1500
READING_ORDER = [
    ("engine/engine.py", False),
    ("engine/request.py", False),
    ("engine/step_plan.py", True),
    ("engine/scheduler.py", True),
    ("engine/preemption.py", True),
    ("engine/kv_cache_manager.py", True),
    ("engine/block_pool.py", True),
    ("engine/block_table.py", True),
    ("engine/prefix_cache.py", True),
    ("engine/policies.py", True),
    ("engine/swap.py", False),
    ("engine/runner.py", True),
    ("engine/sampler.py", False),
    ("engine/kv_cache.py", False),
    ("engine/attention.py", False),
    ("engine/models/llama.py", False),
    ("kernels/reference.py", False),
    ("kernels/paged_attention.py", True),
    ("kernels/merge_splits.py", False),
    ("engine/events.py", False),
    ("engine/event_log.py", False),
    ("engine/memory_map.py", False),
]
"""Every file of the tour, and whether it is part of the core path, which has a limit of lines."""


def core_path() -> str:
    """A table of the tour, in order; the lengths are counted now."""
    rows = ["| | File | Lines | Core | In one sentence |", "|--:|---|--:|:-:|---|"]
    core = 0
    for number, (path, is_core) in enumerate(READING_ORDER, start=1):
        source = (ROOT / path).read_text(encoding="utf-8")
        lines = source.count("\n")
        core += lines * is_core
        mark = "●" if is_core else ""
        rows.append(f"| {number} | `{path}` | {lines} | {mark} | {_first_sentence(source)} |")
    if core > CORE_LIMIT:
        log.warning("the core path has %d lines, more than %d", core, CORE_LIMIT)
    rows.append(f"| | **Core path** | **{core:,}** | ● | The limit is {CORE_LIMIT:,} lines. |")
    return "\n".join(rows)


def _first_sentence(source: str) -> str:
    docstring = ast.get_docstring(ast.parse(source)) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?=\s|$)(?!\s*\w+\s->)", paragraph)
    text = paragraph if sentence is None or sentence[0].endswith(":") else sentence[0]
    return text.replace("|", "\\|")
