"""What the pages of the lessons show: parts of their scripts, run now, their pictures, and source code.

A lesson is a module of tutorials/lessons. Its parts print and its pictures return SVG (see telling.py there); a page
names one as `01_on_demand_paging.paged`.
"""

import ast
import importlib
import inspect
import io
import logging
import sys
import tempfile
import textwrap
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from types import ModuleType

from pagelens.viz import lab

log = logging.getLogger("mkdocs.hooks.pagelens")

ROOT = Path(__file__).parents[2]


def printed(name: str) -> str:
    """What a part of a lesson prints."""
    lesson, part = name.split(".")
    text = io.StringIO()
    with redirect_stdout(text):
        getattr(module(lesson), part)()
    return f"```text\n{text.getvalue().rstrip()}\n```"


def picture(name: str) -> str:
    """The SVG of a picture of a lesson, for the inside of a figure; its width does not depend on the caption's."""
    lesson, function = name.split(".")
    svg: str = getattr(module(lesson), function)()
    return svg.replace("<svg ", '<svg style="width:820px;max-width:100%" ', 1)


def lesson_source(name: str) -> str:
    """The source of something in a lesson."""
    lesson, thing = name.split(".")
    source = inspect.getsource(getattr(module(lesson), thing))
    return f'```python title="tutorials/lessons/{lesson}.py"\n{source.rstrip()}\n```'


def code(place: str) -> str:
    """A folded box with the source of `file.py:Class.method`, and the line where it begins."""
    path, _, name = place.partition(":")
    text = (ROOT / path).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        found = [child for child in ast.iter_child_nodes(node) if getattr(child, "name", "") == part]
        if not found:
            log.warning("a lesson points to %s in %s, which is not there", name, path)
            return ""
        node = found[0]
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]  # type: ignore[attr-defined]
    source = textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")
    title = f"`{name}` in `{path}`, line {node.lineno}"  # type: ignore[attr-defined]
    return f'??? quote "{title}"\n\n    ```python\n{source}\n    ```'


def grew_into(lesson: str) -> str:
    """The table of lesson 1: which piece of PagedKVCache became which file."""
    rows = ["| In `PagedKVCache` | In the engine | What is new there |", "|---|---|---|"]
    for line, path, name, new in module(lesson).GREW_INTO:
        more = "…" if line.rstrip()[-1] in "([=" else ""
        rows.append(f"| `{line}{more}` | `{path}`: `{name}` | {new} |")
    return "\n".join(rows)


@cache
def module(name: str) -> ModuleType:
    """The module of a lesson."""
    folder = str(ROOT / "tutorials" / "lessons")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def lab_starter(name: str) -> str:
    """The file that `pagelens lab start` writes."""
    text = lab.starter((lab.LABS / name / "solution.py").read_text(encoding="utf-8"))
    return f'```python title="{name}.py"\n{text.rstrip()}\n```'


def lab_check(which: str) -> str:
    """What `pagelens lab check` prints for `eviction.starter`, `.default` (the default policy) or `.solution`."""
    name, which = which.split(".")
    solution = (lab.LABS / name / "solution.py").read_text(encoding="utf-8")
    default = "from pagelens.engine.policies import DefaultPolicy\n\n\nclass Eviction(DefaultPolicy):\n    pass\n"
    text = {"starter": lab.starter(solution), "default": default, "solution": solution}[which]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.py")
        file.write_text(text, encoding="utf-8")
        checks = lab.check(name, file)
    return "```text\n" + "\n".join(lab.report(checks)) + "\n```"
