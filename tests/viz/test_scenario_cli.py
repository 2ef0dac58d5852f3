"""`pagelens scenario`: list, check, record."""

from pathlib import Path
from subprocess import CompletedProcess

from command_line import pagelens

from pagelens.engine.kvtrace import Trace
from pagelens.viz.scenario_file import SCENARIOS


def scenario(*arguments: str) -> CompletedProcess[str]:
    return pagelens("scenario", *arguments)


def test_list_names_each_of_them() -> None:
    done = scenario("list")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == sorted(p.stem for p in SCENARIOS.glob("*.toml"))


def test_check_names_stops_and_answers_and_refuses_what_never_comes(tmp_path: Path) -> None:
    good = scenario("check", str(SCENARIOS / "chunked_prefill.toml"))
    assert good.returncode == 0, good.stderr
    assert "question 1 before event 38: 30   (C's prompt" in good.stdout
    file = tmp_path / "never.toml"
    file.write_text((SCENARIOS / "chunked_prefill.toml").read_text().replace("start > 40", "start > 400"))
    bad = scenario("check", str(file))
    assert bad.returncode == 2
    assert "picture 1 never comes" in bad.stderr and "Traceback" not in bad.stderr
    missing = scenario("check", "/no/such.toml")
    assert missing.returncode == 2 and "/no/such.toml cannot be read" in missing.stderr


def test_record_writes_a_trace_of_a_variant(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    done = scenario("record", "chunked_prefill", "--variant", "whole", "--out", str(path))
    assert done.returncode == 0, done.stderr
    assert Trace(path).header.run == "chunked_prefill:whole"
    unknown = scenario("record", "chunked_prefill", "--variant", "half", "--out", str(path))
    assert unknown.returncode == 2 and "has no variant 'half', but chunks, whole" in unknown.stderr
    absent = scenario("record", "none", "--out", str(path))
    assert absent.returncode == 2 and "there is no scenario 'none', but" in absent.stderr
