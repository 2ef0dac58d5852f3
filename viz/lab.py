"""Labs: a starter file generated from the marked solution, and a grader that reads the event log of the student's run.

    tutorials/labs/eviction/solution.py    # solution: ... # end  marks what students write
                            workload.py    run as a process of its own: student's file in, .kvtrace out
                            grading.py     grade(StudentRun) -> checks

Student code runs in that process only. What it says is not believed; what the log says is checked.
"""

import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from pagelens.engine import PagelensError
from pagelens.engine.errors import TraceError
from pagelens.engine.kvtrace import Trace

LABS = Path(__file__).parents[1] / "tutorials" / "labs"
TIME_LIMIT = 30.0
"""Seconds that a student's run may take; it needs less than one."""

_MARKED = re.compile(
    r"^(?:(?P<before> *)# hint: (?P<hint>.*)\n)?(?P<indent> *)# solution:\n.*?^ *# end\n", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Check:
    """One graded statement; all its points or none."""

    name: str
    points: int
    passed: bool
    reason: str


@dataclass(frozen=True)
class StudentRun:
    """What came out of the student's process: a whole trace, or the `problem`; `notes` are its mistakes on the way."""

    trace: Trace | None
    problem: str = ""
    notes: str = ""


def starter(solution: str) -> str:
    """What a student gets: each marked part is left out, and raises its hint if it has one."""

    def blank(match: re.Match[str]) -> str:
        indent, hint = match["indent"], match["hint"]
        return f"{indent}raise NotImplementedError({hint!r})\n" if hint else f"{indent}# your code\n"

    return _MARKED.sub(blank, solution)


def start(name: str, to: Path) -> Path:
    """Write the starter of a lab into a folder and return its path. Raises PagelensError rather than overwrite."""
    folder, target = _folder(name), to / f"{name}.py"
    if target.exists():
        raise PagelensError(f"{target} exists: move it away first, or choose another folder with --to")
    to.mkdir(parents=True, exist_ok=True)
    text = starter((folder / "solution.py").read_text(encoding="utf-8"))
    target.write_text(text, encoding="utf-8")
    return target


def check(name: str, file: Path, time_limit: float = TIME_LIMIT) -> list[Check]:
    """Run a student's file on the lab's workload and grade it. Raises PagelensError if there is no such lab or file."""
    folder = _folder(name)
    if not file.is_file():
        raise PagelensError(f"there is no file {file}: `pagelens lab start {name} --to .` writes one to begin with")
    with tempfile.TemporaryDirectory(prefix="pagelens-lab-") as scratch:
        run = _run(folder / "workload.py", file.resolve(), Path(scratch) / "run.kvtrace", time_limit)
        return _grader(folder)(run)


def report(checks: list[Check]) -> list[str]:
    """A line for each check, and the sum."""
    earned, total = sum(check.points for check in checks if check.passed), sum(check.points for check in checks)
    lines = [
        f"{'✓' if check.passed else '✗'} {check.points * check.passed}/{check.points}  {check.name}: {check.reason}"
        for check in checks
    ]
    return [*lines, f"{earned} of {total} points"]


def write_junit(name: str, checks: list[Check], path: Path) -> None:
    """The checks as JUnit XML, as course servers and CI systems read it."""
    failed = sum(not check.passed for check in checks)
    suite = ElementTree.Element("testsuite", name=f"pagelens.lab.{name}", tests=str(len(checks)), failures=str(failed))
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=f"lab.{name}", name=check.name)
        properties = ElementTree.SubElement(case, "properties")
        ElementTree.SubElement(properties, "property", name="points", value=str(check.points * check.passed))
        ElementTree.SubElement(properties, "property", name="max_points", value=str(check.points))
        if not check.passed:
            ElementTree.SubElement(case, "failure", message=check.reason)
    ElementTree.indent(suite)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _folder(name: str) -> Path:
    names = sorted(path.parent.name for path in LABS.glob("*/solution.py"))
    if name not in names:
        raise PagelensError(f"there is no lab {name!r}, there is: {', '.join(names)}")
    return LABS / name


def _grader(folder: Path) -> Callable[[StudentRun], list[Check]]:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    grade: Callable[[StudentRun], list[Check]] = importlib.import_module("grading").grade
    return grade


def _run(workload: Path, student: Path, target: Path, time_limit: float) -> StudentRun:
    command = [sys.executable, str(workload), str(student), str(target), str(time_limit)]
    try:  # the process ends itself at the limit and says where it was; the second limit is for code that prevents that
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=time_limit + 30, cwd=target.parent
        )
    except subprocess.TimeoutExpired:
        return StudentRun(None, f"it did not end within {time_limit:g} s and was stopped: an endless loop?")
    complaint = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
    if "Timeout (" in done.stderr:
        line = re.search(rf'File "{re.escape(str(student))}", line (\d+)', done.stderr)
        place = f", in line {line[1]}" if line else ""
        return StudentRun(None, f"it did not end within {time_limit:g} s{place}: an endless loop?")
    if done.returncode:
        return StudentRun(None, complaint[0])
    try:
        return StudentRun(Trace(target), notes=done.stderr.strip())
    except TraceError:
        return StudentRun(None, "the process ended before the workload did, without an error: is there an exit in it?")
