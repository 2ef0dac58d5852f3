"""The app as a whole: the page is served, foreign names and taken ports are not."""

import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn
from fake_engine import FakeLoop
from fastapi.testclient import TestClient

from pagelens.engine.errors import PagelensError
from pagelens.viz import scripts
from pagelens.viz.app import LOOPBACK, STATIC, PageServer, build_app, serve

ALONE = ("worker.js", "run_tail.js", "exported.js", "replays.js")
"""Scripts of the worker, of an exported file and of the docs. Not part of the page."""


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = build_app(FakeLoop(), LOOPBACK)  # type: ignore[arg-type]
    yield TestClient(app, base_url="http://127.0.0.1:7860")


def test_no_two_scripts_declare_the_same_name() -> None:
    """They are classic scripts and share one scope."""
    declared: dict[str, str] = {}
    for name in (*scripts.ALL, "exported.js", "replays.js"):
        text = (STATIC / name).read_text(encoding="utf-8")
        for word in re.findall(r"^(?:const|let|var|class|function|async function)\s+(\w+)", text, re.MULTILINE):
            assert word not in declared, f"{word} is declared in {declared[word]} and in {name}"
            declared[word] = name


def test_the_page_and_its_files_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    for name in (*scripts.ALL, "worker.js", "pagelens.css"):
        assert client.get(f"/pagelens/static/{name}").status_code == 200, name
    assert client.get("/pagelens/static/../app.py").status_code == 404


def test_every_script_is_loaded() -> None:
    assert {path.name for path in STATIC.glob("*.js")} == {*scripts.ALL, *ALONE}


def test_the_template_stays_as_it_is() -> None:
    """gr.HTML renders a template again and again if it names a value, and strips what scripts have drawn."""
    template = (STATIC / "live.html").read_text()
    assert "${" not in template
    assert "{{" not in template
    assert "<script" not in template


@pytest.mark.parametrize("path", ["/", "/pagelens/events", "/pagelens/recording", "/pagelens/static/page.js"])
def test_a_foreign_name_for_this_machine_gets_nothing(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"host": "evil.example:7860"}).status_code == 400


def test_a_port_in_use_is_said_with_its_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PagelensError, match=rf"port {port} .* in use.*--port {port + 1}"):
            serve(FakeLoop(), port=port)  # type: ignore[arg-type]


def test_a_foreign_address_is_said() -> None:
    with pytest.raises(PagelensError, match=r"cannot listen on 203\.0\.113\.7:7860"):
        serve(FakeLoop(), host="203.0.113.7")  # type: ignore[arg-type]


def test_the_server_stops_at_once_although_a_stream_is_open() -> None:
    app = build_app(FakeLoop())  # type: ignore[arg-type]
    server = PageServer(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/pagelens/events") as stream:
        assert stream.readline() == b"retry: 500\n"
        server.should_exit = True
        thread.join(timeout=2)
    assert not thread.is_alive()
