"""The eviction lab: the starter fails, the solution passes, and whatever else students hand in gets a clear answer."""

import ast
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import pagelens

from pagelens.engine import PagelensError
from pagelens.viz import lab

SOLUTION = (lab.LABS / "eviction/solution.py").read_text(encoding="utf-8")


def graded(tmp_path: Path, body: str, time_limit: float = lab.TIME_LIMIT) -> dict[str, lab.Check]:
    """Grade a policy whose `choose_eviction` has this body, or a whole file."""
    if "class Eviction" not in body:
        body = (
            "from pagelens.engine.policies import DefaultPolicy\n\n"
            "class Eviction(DefaultPolicy):\n    def choose_eviction(self, cached):\n" + textwrap.indent(body, " " * 8)
        )
    file = tmp_path / "eviction.py"
    file.write_text(body, encoding="utf-8")
    return {check.name: check for check in lab.check("eviction", file, time_limit)}


def points(checks: dict[str, lab.Check]) -> int:
    return sum(check.points for check in checks.values() if check.passed)


def test_the_starter_keeps_docstrings_and_hides_the_solution() -> None:
    text = lab.starter(SOLUTION)
    tree, whole = ast.parse(text), ast.parse(SOLUTION)
    assert ast.get_docstring(tree) == ast.get_docstring(whole)
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert names == ["__init__", "choose_eviction"]
    assert all(ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    assert "raise NotImplementedError(" in text and "# solution:" not in text and "# end" not in text
    assert "self.found" not in text and "self.found" in SOLUTION


def test_the_solution_has_all_points(tmp_path: Path) -> None:
    checks = graded(tmp_path, SOLUTION)
    assert sum(check.points for check in checks.values()) == 10
    assert points(checks) == 10, [check.reason for check in checks.values() if not check.passed]


def test_the_starter_has_none_and_gives_its_hint(tmp_path: Path) -> None:
    checks = graded(tmp_path, lab.starter(SOLUTION))
    assert points(checks) == 0
    assert "which of these were never found by a prompt?" in checks["runs the whole workload"].reason


@pytest.mark.parametrize(
    "body",
    ["return next(iter(cached))", "return list(cached)[-1]"],
    ids=["least recent", "most recent"],
)
def test_simpler_policies_get_the_points_of_a_sound_run_only(tmp_path: Path, body: str) -> None:
    checks = graded(tmp_path, body)
    assert points(checks) == 5
    assert "the default finds 21.9%" in checks["finds more than the default"].reason


def test_nonsense_is_named(tmp_path: Path) -> None:
    checks = graded(tmp_path, "return -7")
    offered = checks["chooses only what is offered"]
    assert not offered.passed and "block -7, which is not cached" in offered.reason and "times" in offered.reason
    assert checks["the log is sound"].passed and points(checks) == 4


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return list(cached)[99]", "IndexError: list index out of range (line 5)"),
        ("import sys\nsys.exit()", "SystemExit:  (line 6)"),
        ("import os\nos._exit(0)", "without an error: is there an exit in it?"),
        ("class Eviction:\n  def choose(", "SyntaxError: '(' was never closed (eviction.py, line 2)"),
        ("class Eviction:\n    pass", "lacks admit, choose_victim, choose_eviction"),
        ("class Eviction2:\n    pass", "has no attribute 'Eviction'"),
    ],
    ids=["raises", "exits", "exits hard", "syntax", "no policy", "wrong name"],
)
def test_a_broken_file_gets_a_reason_and_no_points(tmp_path: Path, body: str, reason: str) -> None:
    checks = graded(tmp_path, body)
    assert points(checks) == 0
    assert reason in checks["runs the whole workload"].reason
    assert "Traceback" not in checks["runs the whole workload"].reason


def test_an_endless_loop_is_stopped_and_located(tmp_path: Path) -> None:
    checks = graded(tmp_path, "while True:\n    pass", time_limit=2)
    assert points(checks) == 0
    reason = checks["runs the whole workload"].reason
    assert "did not end within 2 s, in line" in reason and "an endless loop?" in reason


FORGED_LOOKUPS = """
    from pagelens.engine import events as ev
    from pagelens.engine.event_log import EventLog
    from pagelens.engine.policies import DefaultPolicy

    emit = EventLog.emit

    def forged(self, kind, why, cause=-1, **fields):
        if kind is ev.PrefixLookup:
            fields["hit_tokens"] = fields["num_tokens"] - 1
        return emit(self, kind, why, cause, **fields)

    EventLog.emit = forged

    class Eviction(DefaultPolicy):
        pass
"""
HIDDEN_EVICTIONS = """
    from pagelens.engine.block_pool import BlockPool
    from pagelens.engine.policies import DefaultPolicy

    BlockPool.evict = lambda self, block, hash, why, cause: (self.cached.pop(block), self.blank.append(block))

    class Eviction(DefaultPolicy):
        pass
"""


@pytest.mark.parametrize("text", [FORGED_LOOKUPS, HIDDEN_EVICTIONS], ids=["look-ups", "hidden evictions"])
def test_a_log_that_was_tampered_with_is_not_believed(tmp_path: Path, text: str) -> None:
    checks = graded(tmp_path, textwrap.dedent(text))
    sound = checks["the log is sound"]
    assert not sound.passed and ("tampered" in sound.reason or "invariants are broken" in sound.reason)
    assert points(checks) <= 3 and not checks["finds more than the default"].passed


def test_there_is_no_such_lab_or_file(tmp_path: Path) -> None:
    with pytest.raises(PagelensError, match="there is no lab 'evict', there is: eviction"):
        lab.start("evict", tmp_path)
    with pytest.raises(PagelensError, match="pagelens lab start eviction"):
        lab.check("eviction", tmp_path / "nothing.py")


def test_the_command_starts_checks_and_writes_junit(tmp_path: Path) -> None:
    started = pagelens("lab", "start", "eviction", "--to", str(tmp_path / "new"))
    file, junit = tmp_path / "new/eviction.py", tmp_path / "result.xml"
    assert started.returncode == 0 and file.is_file() and "pagelens lab check eviction" in started.stdout
    again = pagelens("lab", "start", "eviction", "--to", str(tmp_path / "new"))
    assert again.returncode == 2 and "exists" in again.stderr

    checked = pagelens("lab", "check", "eviction", str(file), "--junit", str(junit))
    assert checked.returncode == 1 and "0 of 10 points" in checked.stdout and "Traceback" not in checked.stderr
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("5", "5")
    assert all("hint" not in (failure.get("message") or "") for failure in suite.iter("failure"))

    file.write_text(SOLUTION, encoding="utf-8")
    passed = pagelens("lab", "check", "eviction", str(file), "--junit", str(junit))
    assert passed.returncode == 0 and "10 of 10 points" in passed.stdout
    suite = ElementTree.parse(junit).getroot()
    assert suite.get("failures") == "0" and [p.get("value") for p in suite.iter("property")][::2] == list("21232")
