"""Commands: what is refused, with which words, and that the engine serves on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_engine import FakeLoop
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pagelens.engine.kvtrace import Trace
from pagelens.viz.access import Access, AccessLayer
from pagelens.viz.mixed_requests import MIXED_REQUESTS
from pagelens.viz.own_page import MOST_BYTES
from pagelens.viz.routes import page_routes
from pagelens.viz.stream import EventStream

OWN = "http://testserver"


class Site:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        app = FastAPI()
        app.add_middleware(AccessLayer, access=Access())
        app.include_router(page_routes(self.loop, EventStream(self.loop)))  # type: ignore[arg-type]
        self.client = TestClient(app)

    def post(self, content: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        body = content if isinstance(content, bytes) else msgspec.json.encode(content)
        headers = {"content-type": "application/json", "origin": OWN} | {
            k.replace("_", "-"): v for k, v in headers.items()
        }
        answer = self.client.post("/pagelens/command", content=body, headers=headers)
        return answer.status_code, answer.json()


@pytest.fixture
def site() -> Iterator[Site]:
    yield Site()


def test_submit_answers_with_the_request(site: Site) -> None:
    status, answer = site.post({"command": "submit", "prompt": "A hacker is", "max_tokens": 3, "n": 2})
    assert (status, answer) == (200, {"requests": ["A"]})
    site.loop.engine.step()
    assert set(site.loop.log.snapshot().sequences) == {"A.0", "A.1"}


def test_submit_mixed_sends_them_all(site: Site) -> None:
    status, answer = site.post({"command": "submit_mixed"})
    assert status == 200
    assert len(answer["requests"]) == len(MIXED_REQUESTS) == 8


def test_halt_step_run_speed_abort(site: Site) -> None:
    site.post({"command": "submit", "prompt": "A hacker is"})
    assert site.post({"command": "halt"})[0] == 200
    assert site.loop.halted
    step = site.loop.log.step
    assert site.post({"command": "step"})[0] == 200
    assert site.loop.log.step == step + 1
    assert site.post({"command": "run"})[0] == 200
    assert not site.loop.halted
    assert site.post({"command": "speed", "steps_per_second": 2.5})[0] == 200
    assert site.loop.steps_per_second == 2.5
    assert site.post({"command": "speed", "steps_per_second": None})[0] == 200
    assert site.loop.steps_per_second is None
    assert site.post({"command": "abort", "request": "A"})[0] == 200
    assert site.loop.log.snapshot().sequences["A.0"].reason == "abort"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (b"{", "no command"),
        (b"[]", "no command"),
        (b"\xff", "no command"),
        ({"command": "format_disk"}, "format_disk"),
        ({"prompt": "x"}, "command"),
        ({"command": "submit"}, "prompt"),
        ({"command": "submit", "prompt": ""}, "the prompt is empty"),
        ({"command": "submit", "prompt": 7}, "prompt"),
        ({"command": "submit", "prompt": "x", "max_tokens": 0}, "max_tokens is 0"),
        ({"command": "submit", "prompt": "x", "max_tokens": 1.5}, "max_tokens"),
        ({"command": "submit", "prompt": "x", "max_tokens": None}, "max_tokens"),
        ({"command": "submit", "prompt": "x", "temperature": -1}, "temperature is -1"),
        ({"command": "submit", "prompt": "x", "top_p": 2}, "top_p is 2"),
        ({"command": "submit", "prompt": "x", "n": 0}, "n is 0"),
        ({"command": "submit", "prompt": "x", "beam": 4}, "beam"),
        ({"command": "speed", "steps_per_second": 0}, "allowed is 0.01 to 1000"),
        ({"command": "speed", "steps_per_second": -3}, "allowed is 0.01 to 1000"),
        ({"command": "step"}, "halt it"),
        ({"command": "abort", "request": "Z"}, "Z"),
    ],
)
def test_bad_commands_are_refused_with_a_message_and_the_engine_serves_on(site: Site, command: Any, words: str) -> None:
    status, answer = site.post(command)
    assert status == 400
    assert words in answer["error"]
    assert site.post({"command": "submit", "prompt": "still there?"})[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "http://testserver:8080", "https://testserver", "null"])
def test_other_sites_may_not_command(site: Site, origin: str) -> None:
    status, answer = site.post({"command": "halt"}, origin=origin)
    assert status == 403
    assert origin in answer["error"]
    assert not site.loop.halted


@pytest.mark.parametrize("fetched_from", ["cross-site", "same-site"])
def test_other_sites_may_not_command_without_an_origin_either(site: Site, fetched_from: str) -> None:
    answer = site.client.post("/pagelens/command", json={"command": "halt"}, headers={"sec-fetch-site": fetched_from})
    assert answer.status_code == 403 and fetched_from in answer.json()["error"]
    assert site.client.get("/pagelens/events", headers={"sec-fetch-site": fetched_from}).status_code == 403
    assert not site.loop.halted


def test_a_program_without_an_origin_may_command(site: Site) -> None:
    answer = site.client.post("/pagelens/command", json={"command": "halt"})
    assert answer.status_code == 200


def test_a_command_is_json(site: Site) -> None:
    assert site.post({"command": "halt"}, content_type="text/plain")[0] == 415
    assert not site.loop.halted


def test_a_command_is_not_endless(site: Site) -> None:
    status, answer = site.post({"command": "submit", "prompt": "x" * MOST_BYTES})
    assert status == 413
    assert "shorten the prompt" in answer["error"]


def test_the_recording_is_a_trace_of_what_the_log_holds(site: Site, tmp_path: Path) -> None:
    site.loop.log._capacity = 32
    site.post({"command": "submit_mixed"})
    for _ in range(10):
        site.loop.engine.step()
    assert site.loop.log.oldest_seq > 0
    answer = site.client.get("/pagelens/recording")
    assert "attachment" in answer.headers["content-disposition"]
    path = tmp_path / "run.kvtrace"
    path.write_bytes(answer.content)
    trace = Trace(path)
    assert trace.start().fold(trace.events) == site.loop.log.snapshot()
