"""Who is let in, who may do what, and that neither guessing nor forging a cookie helps."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from scripted import scripted_engine
from typer.testing import CliRunner

from pagelens.engine import EngineLoop
from pagelens.engine.config import KERNELS
from pagelens.engine.errors import ConfigError
from pagelens.viz import access as access_module
from pagelens.viz import app as app_module
from pagelens.viz import cli
from pagelens.viz.access import WRONG_GUESSES, Access, Role, Visitor
from pagelens.viz.app import PageServer, build_app, serve
from pagelens.viz.scripts import STATIC

OWN_ROUTES = [
    "/pagelens/events",
    "/pagelens/recording",
    "/pagelens/history?run=x&before=1",
    "/pagelens/loading",
    "/pagelens/me",
]
GRADIO_ROUTES = ["/", "/config", "/gradio_api/info", "/theme.css"]
INSTRUCTORS = [
    {"command": "halt"},
    {"command": "step"},
    {"command": "next_phase"},
    {"command": "run"},
    {"command": "run_until", "condition": "BlockCopied"},
    {"command": "run_to_token", "sequence": "A.0"},
    {"command": "speed", "steps_per_second": 1},
    {"command": "load_model", "model": "/no/such"},
]


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    loop = EngineLoop(scripted_engine(16, 4), max_requests=3).start()
    loop.engine.tokenize = lambda prompt: [len(prompt)]  # type: ignore[method-assign,assignment]
    yield loop
    loop.stop()


def app_with(loop: EngineLoop, password: str | None = None, instructor: str | None = None) -> FastAPI:
    return build_app(loop, access=Access(password, instructor))


def command(client: TestClient, **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = client.post("/pagelens/command", json=fields)
    return answer.status_code, answer.json()


def sign_in(client: TestClient, password: str) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"password": password})  # with escapes, which can say half a surrogate pair
    answer = client.post("/pagelens/login", content=body, headers={"content-type": "application/json"})
    return answer.status_code, answer.json()


def test_without_passwords_everyone_may_do_everything(loop: EngineLoop) -> None:
    client = TestClient(app_with(loop))
    assert client.get("/pagelens/me").json() == {"role": "instructor", "instructor_password": False}
    assert command(client, command="halt") == (200, {})
    assert loop.halted


@pytest.mark.parametrize("path", OWN_ROUTES + GRADIO_ROUTES)
def test_with_a_password_nothing_is_shown_to_who_does_not_know_it(loop: EngineLoop, path: str) -> None:
    client = TestClient(app_with(loop, "open sesame"), follow_redirects=False)
    answer = client.get(path, headers={"accept": "*/*"})
    assert answer.status_code == 401 and "/pagelens/login" in answer.json()["error"]
    assert "set-cookie" not in answer.headers
    answer = client.get(path, headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/pagelens/login")
    assert command(client, command="halt")[0] == 401
    assert not loop.halted


def test_the_login_page_and_its_files_are_open(loop: EngineLoop) -> None:
    client = TestClient(app_with(loop, "open sesame"))
    assert "password" in client.get("/pagelens/login").text
    assert client.get("/pagelens/static/pagelens.css").status_code == 200


def test_with_the_password_everything_is_open_and_signing_out_closes_it(loop: EngineLoop) -> None:
    client = TestClient(app_with(loop, "open sesame"))
    assert sign_in(client, "open sesame") == (200, {"role": "instructor"})
    assert client.get("/").status_code == 200
    assert client.get("/pagelens/recording").status_code == 200
    assert command(client, command="halt")[0] == 200
    assert client.post("/pagelens/logout").json() == {"role": None}
    assert command(client, command="run")[0] == 401


@pytest.mark.parametrize("given", ["", "Open sesame", "open sesame ", "ouvre-toi, sésame", "\ud800"])
def test_a_wrong_password_is_refused(loop: EngineLoop, given: str) -> None:
    client = TestClient(app_with(loop, "open sesame"))
    assert sign_in(client, given)[0] in (400, 403)
    assert client.get("/pagelens/me").status_code == 401


def test_a_password_may_have_any_letters(loop: EngineLoop) -> None:
    client = TestClient(app_with(loop, "ouvre-toi, sésame"))
    assert sign_in(client, "ouvre-toi, sésame")[0] == 200


def test_guessing_is_slowed_down(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(app_with(loop, "open sesame"))
    for number in range(WRONG_GUESSES):
        assert sign_in(client, f"guess {number}") == (403, {"error": "this is not the password"})
    status, answer = sign_in(client, "open sesame")
    assert status == 429 and f"{WRONG_GUESSES} wrong passwords" in answer["error"] and "try again in" in answer["error"]
    now = access_module.time.monotonic()
    monkeypatch.setattr(access_module.time, "monotonic", lambda: now + access_module.GUESSING_SECONDS + 1)
    assert sign_in(client, "open sesame")[0] == 200


def test_one_address_does_not_lock_out_another() -> None:
    access = Access("open sesame")
    for _ in range(WRONG_GUESSES):
        with pytest.raises(access_module.Refused, match="not the password"):
            access.sign_in("guess", "10.0.0.1")
    assert access.sign_in("open sesame", "10.0.0.2").role is Role.INSTRUCTOR


def test_another_site_cannot_sign_a_browser_in(loop: EngineLoop) -> None:
    client = TestClient(app_with(loop, "open sesame"))
    for path in ("/pagelens/login", "/pagelens/logout"):
        answer = client.post(path, json={"password": "open sesame"}, headers={"origin": "http://evil.example"})
        assert answer.status_code in (401, 403) and "set-cookie" not in answer.headers


def test_cookies_cannot_be_made_at_home() -> None:
    access = Access(instructor_password="chalk")
    viewer = access.newcomer()
    assert viewer is not None and viewer.role is Role.VIEWER
    ticket = access.ticket(viewer)
    assert access.read_ticket(ticket) == viewer
    forged = [
        "", ".", "..", "x", ticket[:-1], ticket + "0", ticket.replace("viewer", "instructor"), "é.viewer.ü",
        Access(instructor_password="chalk").ticket(Visitor(viewer.name, Role.INSTRUCTOR)),
    ]  # fmt: skip
    assert [access.read_ticket(text) for text in forged] == [None] * len(forged)


def test_the_cookie_is_kept_from_scripts_and_other_sites(loop: EngineLoop) -> None:
    answer = TestClient(app_with(loop, instructor="chalk")).get("/pagelens/me")
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=Lax" in answer.headers["set-cookie"]
    assert "Secure" not in answer.headers["set-cookie"]
    answer = TestClient(app_with(loop, instructor="chalk"), base_url="https://class.example").get("/pagelens/me")
    assert "Secure" in answer.headers["set-cookie"]


def test_with_an_instructor_only_their_password_moves_the_engine(loop: EngineLoop) -> None:
    app = app_with(loop, instructor="chalk")
    viewer, teacher = TestClient(app), TestClient(app)
    assert viewer.get("/pagelens/me").json() == {"role": "viewer", "instructor_password": True}
    assert viewer.get("/").status_code == 200
    for fields in INSTRUCTORS:
        status, answer = command(viewer, **fields)
        assert status == 403 and f"{fields['command']} is for the instructor" in answer["error"]
    assert not loop.halted and loop.steps_per_second is None
    assert sign_in(teacher, "chalk") == (200, {"role": "instructor"})
    assert command(teacher, command="halt") == (200, {}) and loop.halted
    assert command(viewer, command="run")[0] == 403 and loop.halted
    assert teacher.post("/pagelens/logout").json() == {"role": "viewer"}
    assert command(teacher, command="run")[0] == 403


def test_with_both_passwords_there_are_three_kinds_of_people(loop: EngineLoop) -> None:
    app = app_with(loop, "class", "chalk")
    stranger, student, teacher = TestClient(app), TestClient(app), TestClient(app)
    assert sign_in(student, "class")[1] == {"role": "viewer"}
    assert sign_in(teacher, "chalk")[1] == {"role": "instructor"}
    assert [command(who, command="halt")[0] for who in (stranger, student, teacher)] == [401, 403, 200]


def test_a_viewer_aborts_their_own_requests_and_the_instructor_all(loop: EngineLoop) -> None:
    app = app_with(loop, instructor="chalk")
    one, other, teacher = TestClient(app), TestClient(app), TestClient(app)
    sign_in(teacher, "chalk")
    command(teacher, command="halt")
    for who in (one, one, other):
        assert command(who, command="submit", prompt="x")[0] == 200
    status, answer = command(other, command="abort", request="A")
    assert status == 403 and "request 'A' is not yours" in answer["error"]
    assert command(one, command="abort", request="A") == (200, {})
    assert command(teacher, command="abort", request="B") == (200, {})
    assert [who.get("/pagelens/me").json()["role"] for who in (one, other)] == ["viewer"] * 2
    sign_in(other, "chalk")
    assert command(other, command="abort", request="C") == (200, {}), "signing in does not lose what one sent"
    assert not loop.engine.requests


def test_a_full_queue_says_so(loop: EngineLoop) -> None:
    client = TestClient(app_with(loop))
    command(client, command="halt")
    for _ in range(3):
        assert command(client, command="submit", prompt="x")[0] == 200
    for fields in ({"command": "submit", "prompt": "x"}, {"command": "submit_mixed"}):
        status, answer = command(client, **fields)
        assert status == 400 and "3 requests are unfinished" in answer["error"] and "at most 3" in answer["error"]
    command(client, command="abort", request="B")
    assert command(client, command="submit", prompt="x")[0] == 200


def test_samples_beyond_what_can_run_are_refused(loop: EngineLoop) -> None:
    status, answer = command(TestClient(app_with(loop)), command="submit", prompt="x", n=9)
    assert status == 400 and "n is 9, but at most 8" in answer["error"]


@pytest.mark.parametrize(("password", "instructor"), [("", None), (None, ""), ("same", "same")])
def test_passwords_that_protect_nothing_are_refused(password: str | None, instructor: str | None) -> None:
    with pytest.raises(ConfigError, match="password"):
        Access(password, instructor)


def test_nobody_fills_the_disk_through_gradio(loop: EngineLoop) -> None:
    client = TestClient(app_with(loop), raise_server_exceptions=False)
    answer = client.post("/gradio_api/upload", files={"files": ("x.bin", b"x" * 100_000)})
    assert answer.status_code >= 400 and "exceeded" in answer.text.lower()


@pytest.mark.parametrize(
    ("access", "words"),
    [
        (Access(), "halt the engine and load models.*DNS rebinding.*Set PAGELENS_PASSWORD"),
        (Access(instructor_password="chalk"), "may look and send prompts, and so may.*DNS rebinding"),
        (Access("open sesame"), "unencrypted"),
    ],
)
def test_who_lets_other_machines_in_is_warned(access: Access, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    served_from(access, "0.0.0.0")
    assert re.search(words, capsys.readouterr().err)


def test_who_does_not_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    served_from(Access(), "127.0.0.1")
    assert capsys.readouterr().err == ""


def served_from(access: Access, host: str) -> None:
    """Serve until the first sign of life."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PageServer, "run", lambda *_, **__: None)
        serve(EngineLoop(scripted_engine(16, 4)), host, port=0, access=access)


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, (False, False)),
        ([], {"PAGELENS_PASSWORD": "a"}, (True, False)),
        (["app"], {"PAGELENS_PASSWORD": "a", "PAGELENS_INSTRUCTOR_PASSWORD": "b"}, (True, True)),
        (["app", "--instructor-password", "c"], {}, (False, True)),
        (["app", "--password", "a", "--instructor-password", "a"], {}, "are the same"),
        ([], {"PAGELENS_PASSWORD": ""}, "a password is empty"),
        (["app", "--max-viewers", "0"], {}, "--max-viewers"),
    ],
)
def test_the_command_line_heeds_passwords(
    arguments: list[str], environment: dict[str, str], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Access] = []
    monkeypatch.setattr(app_module, "serve", lambda *_, access, **__: served.append(access))
    for name in ("PAGELENS_PASSWORD", "PAGELENS_INSTRUCTOR_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(cli.app, arguments)
    if isinstance(expected, str):
        assert done.exit_code == 2 and expected in done.output and not served
    else:
        assert done.exit_code == 0, done.output
        assert (served[0].has_password, served[0].has_instructor) == expected


def test_the_form_offers_every_kernel() -> None:
    form = (STATIC / "model_form.js").read_text()
    assert all(f'"{kernel}"' in form for kernel in KERNELS)
