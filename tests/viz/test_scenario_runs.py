"""Scenario runs: deterministic, whole, made once; their moments are in the events; what fails is said."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pagelens.engine.condition import Condition
from pagelens.engine.kvtrace import Trace
from pagelens.viz.inspection import Inspection
from pagelens.viz.scenario import Scenario, ScenarioError
from pagelens.viz.scenario_file import SCENARIOS, read_scenario
from pagelens.viz.scenario_report import report
from pagelens.viz.scenario_routes import scenario_routes
from pagelens.viz.scenario_runs import ScenarioRun, ScenarioRuns, finished_run

ALL = [
    (path.stem, variant) for path in sorted(SCENARIOS.glob("*.toml")) for variant in read_scenario(path).variant_names
]
SMALL = """
title = "Small"
summary = "One request."
watch = "The blocks."
picture = "BlockAllocated"
runner = "scripted"
engine = { num_gpu_blocks_override = 8, max_model_len = 64, block_size = 4 }
arrivals = [{ prompt_tokens = 6, max_tokens = 6 }]

[[tour]]
when = "BlockAllocated"
text = "A block."
highlight = ["block"]

[[questions]]
before = "StepPlanned"
ask = "number"
text = "How many sequences?"
answer = "sequences"
why = "One."

[[questions]]
before = "SequenceFinished"
ask = "block"
text = "Which blocks does it give back?"
of = "BlockReleased"
answer = "block"
why = "All."
"""
_made: dict[tuple[str, str], ScenarioRun] = {}


def made(name: str, variant: str) -> ScenarioRun:
    """Each run is made once for all tests here."""
    if (name, variant) not in _made:
        _made[name, variant] = finished_run(read_scenario(SCENARIOS / f"{name}.toml"), variant, "torch")
    return _made[name, variant]


def small(folder: Path, old: str = "", new: str = "") -> Scenario:
    path = folder / "small.toml"
    path.write_text(SMALL.replace(old, new) if old else SMALL)
    return read_scenario(path)


def trace_of(run: ScenarioRun, folder: Path) -> Trace:
    path = folder / "run.kvtrace"
    path.write_bytes(run.trace())
    return Trace(path)


def timeless(run: ScenarioRun) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in run.trace().splitlines()[1:]]
    durations = ("t", "plan_ns", "launch_ns", "commit_ns")
    return [{name: value for name, value in event.items() if name not in durations} for event in events]


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_each_run_is_sound_and_comes_to_all_that_its_file_names(name: str, variant: str, tmp_path: Path) -> None:
    run = made(name, variant)
    assert run.moments.missing == []
    questions = read_scenario(SCENARIOS / f"{name}.toml").questions
    for moment in run.moments.found:
        if "question" in moment:
            choices = questions[moment["question"]].choices
            assert moment["answers"] and all(answer in choices for answer in moment["answers"] if choices)
    trace = trace_of(run, tmp_path)
    assert Inspection.of(trace).violations == []
    assert len(trace.events) == run.num_events


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_the_answers_are_what_the_events_say(name: str, variant: str, tmp_path: Path) -> None:
    """Found again here in another way: the events of the step from the stop on, by kind and field."""
    scenario, run = read_scenario(SCENARIOS / f"{name}.toml"), made(name, variant)
    events = trace_of(run, tmp_path).events
    for moment in run.moments.found:
        if "question" not in moment:
            continue
        question = scenario.questions[moment["question"]]
        rest = [event for event in events[moment["seq"] :] if event.step == events[moment["seq"]].step]
        kinds = Condition(question.of or question.before).kinds
        candidates = [event for event in rest if type(event).__name__ in kinds]
        if question.answer == "count":
            assert moment["answers"][0] <= len(candidates)
        for answer in moment["answers"] if question.answer != "count" else []:
            said = [getattr(event, question.answer) for event in candidates]
            assert any(answer == each or (isinstance(each, list) and answer in (*each, len(each))) for each in said)
        assert moment["seq"] <= moment["shown"] <= rest[-1].seq


def test_a_scenario_is_the_same_run_every_time() -> None:
    scenario = read_scenario(SCENARIOS / "parallel_sampling.toml")
    assert timeless(finished_run(scenario, "", "torch")) == timeless(made("parallel_sampling", ""))


def test_notes_come_before_the_events_that_they_are_about(tmp_path: Path) -> None:
    newest, seen = -1, Counter[str]()
    for line in b"".join(finished_run(small(tmp_path), "", "torch").parts).splitlines()[1:]:
        data = json.loads(line)
        if "note" in data:
            assert data["seq"] > newest
            seen.update(data.keys() & {"tour", "question", "picture"})
        else:
            newest = data["seq"]
    assert seen == {"tour": 1, "question": 2, "picture": 1}


def test_moments_have_the_answers_and_the_blocks(tmp_path: Path) -> None:
    run = finished_run(small(tmp_path), "", "torch")
    tour, number, blocks = (m for m in run.moments.found if "picture" not in m)
    events = trace_of(run, tmp_path).events
    assert tour["blocks"] == [0] and tour["seq"] < number["seq"]
    assert number["answers"] == [1]
    assert blocks["answers"] == [2, 1, 0]
    assert type(events[blocks["seq"]]).__name__ == "SequenceFinished"
    assert type(events[blocks["shown"]]).__name__ == "BlockReleased"


def test_the_report_names_each_answer_and_what_never_comes(tmp_path: Path) -> None:
    lines = list(report(small(tmp_path), "torch"))
    assert lines[0].startswith("small: ")
    assert any("question 2 before event" in line and "2 or 1 or 0" in line for line in lines)
    with pytest.raises(ScenarioError, match=r"tour 1 never comes: no event matches 'BlockAllocated' 9 times"):
        list(report(small(tmp_path, 'text = "A block."', 'text = "A block."\nnth = 9'), "torch"))
    with pytest.raises(ScenarioError, match=r"question 2 has no answer"):
        list(report(small(tmp_path, 'of = "BlockReleased"', 'of = "BlockReleased and block == 7"'), "torch"))
    choice = 'ask = "choice"\nchoices = { blank = "blank", full = "full" }'
    with pytest.raises(ScenarioError, match=r"question 2: the answer is '2', which is none of its choices"):
        list(report(small(tmp_path, 'ask = "block"', choice), "torch"))


def test_a_run_that_fails_or_never_ends_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScenarioError, match="max_model_len"):
        finished_run(small(tmp_path, "prompt_tokens = 6", "prompt_tokens = 600"), "", "torch")
    monkeypatch.setattr("pagelens.viz.scenario_runs.MOST_STEPS", 3)
    with pytest.raises(ScenarioError, match=r"has not ended after 4 steps and \d+ events, allowed are 3"):
        finished_run(small(tmp_path), "", "torch")


def test_a_run_is_made_once_and_again_when_its_file_has_changed(tmp_path: Path) -> None:
    small(tmp_path)
    runs = ScenarioRuns((tmp_path,), "torch")
    first = runs.run("small", "")
    assert runs.run("small", "") is first
    small(tmp_path, "max_tokens = 6", "max_tokens = 4")
    second = runs.run("small", "")
    assert second is not first
    while not (first.is_over and second.is_over):
        time.sleep(0.01)
    assert first.num_steps == 6 and second.num_steps == 4


def test_the_routes_list_stream_and_keep(tmp_path: Path) -> None:
    small(tmp_path)
    (tmp_path / "broken.toml").write_text("title = 7")
    app = FastAPI()
    app.include_router(scenario_routes(ScenarioRuns((tmp_path,), "torch")))
    client = TestClient(app)
    listed = client.get("/pagelens/scenarios").json()
    assert [scenario["name"] for scenario in listed["scenarios"]] == ["small"]
    assert listed["problems"][0].startswith("broken.toml: ")
    streamed = client.get("/pagelens/scenario/small")
    assert streamed.content.count(b'{"note"') == 4
    kept = client.get("/pagelens/scenario/small/recording")
    assert 'filename="small.kvtrace"' in kept.headers["content-disposition"]
    assert kept.content == b"".join(
        line + b"\n" for line in streamed.content.splitlines() if not line.startswith(b'{"note"')
    )
    assert "there is no scenario 'none'" in client.get("/pagelens/scenario/none").json()["error"]
    assert "has no variant 'x'" in client.get("/pagelens/scenario/small?variant=x").json()["error"]
    foreign = client.get("/pagelens/scenario/small", headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403


def test_a_failed_run_tells_the_player(tmp_path: Path) -> None:
    small(tmp_path, "prompt_tokens = 6", "prompt_tokens = 600")
    app = FastAPI()
    app.include_router(scenario_routes(ScenarioRuns((tmp_path,), "torch")))
    last = json.loads(TestClient(app).get("/pagelens/scenario/small").content.splitlines()[-1])
    assert last["note"] == "failed" and "max_model_len" in last["message"]
