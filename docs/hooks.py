"""What the build fills into the pages, so that they cannot drift from the code.

A page asks for generated text by a comment of its own line:

    <!-- pagelens: core-path -->            the reading order, with the first sentence and length of every file
    <!-- pagelens: run forked_run -->       the events of a run of build_tools/sample_runs.py
    <!-- pagelens: output compare_policies.py --> what a script of examples/ prints
    <!-- pagelens: printed 01_x.part -->    what a part of a lesson of tutorials/lessons prints; also `picture` (SVG)
                                            and `lesson-source`
    <!-- pagelens: replay 02_x.run@Kind --> a viewer of a run of a lesson, standing at the first such event
    <!-- pagelens: lab-check eviction.solution -->  what the grader says; `lab-starter`: the file that students get
    <!-- pagelens: scenario block_size -->  what a scenario shows and asks, with its picture; `scenario-file`: its file
    <!-- pagelens: ladder-walk one_head --> what a kernel of the ladder loads, as a figure; also `ladder-source`,
                                            `ladder-counts` (its bytes and FLOPs) and `ladder-tiles`
    <!-- pagelens: code engine/x.py:C.f -->  a folded box with the source of a class or function
    <!-- pagelens: event-kinds -->          the event reference, from the types and from MemoryMap's reducers
    <!-- pagelens: event-reasons -->        every Why, and on which events it occurs

Code blocks marked `pycon` are run, and what they print must be what the page shows. A warning from here is an error
under `mkdocs build --strict`.
"""

import doctest
import io
import logging
import os
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

from build_tools import event_reference, event_table, kernel_ladder, lessons, reading_order, replays, scenarios
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.pagelens")

DOCS = Path(__file__).parent
PACKAGES = ("engine", "kernels", "viz")
sources = tempfile.TemporaryDirectory(prefix="pagelens-docs-")


@event_priority(100)  # before mkdocstrings reads its paths
def on_config(config: Any) -> Any:
    """Show mkdocstrings the three packages under their import name, and nothing else.

    Griffe walks everything below a namespace package. typings/pagelens is the whole repository, itself included.
    """
    for package in PACKAGES:
        target = Path(sources.name, "pagelens", package)
        shutil.copytree(DOCS.parent / package, target, ignore=_all_but_python, dirs_exist_ok=True)
    replays.add_assets(config)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [sources.name]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Put the viewer's script and stylesheet into the site."""
    for name, content in replays.assets().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Check the page's examples, then fill its markers."""
    _check_examples(markdown, page.file.src_uri)
    return re.sub(r"^<!-- pagelens: (\S+) ?(\S*) -->$", _filled, markdown, flags=re.MULTILINE)


def _all_but_python(folder: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not (name.endswith(".py") or Path(folder, name).is_dir()) or name == "__pycache__"
    ]


def _filled(match: re.Match[str]) -> str:
    name, argument = match.groups()
    return MARKERS[name](argument) if argument else MARKERS[name]()


def _check_examples(markdown: str, name: str) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```pycon.*?\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL)
    for number, block in enumerate(blocks, start=1):
        test = doctest.DocTestParser().get_doctest(block, names, f"{name}, example {number}", name, 0)
        report = io.StringIO()
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        if runner.run(test, out=report.write, clear_globs=False).failed:
            log.warning("%s", report.getvalue())
        names |= test.globs


def output(name: str) -> str:
    """What a script of examples/ prints."""
    printed = io.StringIO()
    sys.path.insert(0, str(DOCS / "examples"))
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(DOCS / "examples" / name), run_name="__main__")
    finally:
        sys.path.remove(str(DOCS / "examples"))
    return f"```text\n{printed.getvalue().rstrip()}\n```"


MARKERS: dict[str, Callable[..., str]] = {
    "core-path": reading_order.core_path,
    "run": event_table.run,
    "event-fields": event_reference.event_fields,
    "event-phases": event_reference.event_phases,
    "event-kinds": event_reference.event_kinds,
    "event-reasons": event_reference.event_reasons,
    "trace-lines": event_reference.trace_lines,
    "output": output,
    "printed": lessons.printed,
    "picture": lessons.picture,
    "lesson-source": lessons.lesson_source,
    "code": lessons.code,
    "grew-into": lessons.grew_into,
    "replay": replays.replay,
    "lab-starter": lessons.lab_starter,
    "lab-check": lessons.lab_check,
    "scenario": scenarios.scenario,
    "scenario-file": scenarios.scenario_file,
    "ladder-source": kernel_ladder.source,
    "ladder-counts": kernel_ladder.counts,
    "ladder-tiles": kernel_ladder.tiles,
    "ladder-walk": kernel_ladder.walk,
}
