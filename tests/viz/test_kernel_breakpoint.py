"""`breakpoint()` inside the kernel: the engine stands in the middle of a program, and the page is served meanwhile."""

import importlib.util
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import live_site
import pytest
from live_site import Site

from pagelens.engine import SamplingParams

pytestmark = [pytest.mark.browser, pytest.mark.triton]

BEFORE = "        slot_offset = block * kv_block_stride"


class StandInKernel:
    """In place of pdb: notes what the kernel's frame holds, and waits."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.seen: list[tuple[str, int, dict[str, Any]]] = []

    def __call__(self) -> None:
        frame = sys._getframe(1)
        self.seen.append((frame.f_code.co_filename, frame.f_lineno, dict(frame.f_locals)))
        self.reached.set()
        assert self.go_on.wait(60)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setitem(live_site.CONFIG, "kernel", "triton")
    site = Site()
    yield site
    site.stop()


def kernel_with_breakpoint(folder: Path) -> ModuleType:
    """The module of the attention kernel, with the line that a user would put in."""
    import pagelens.kernels.paged_attention as original

    source = Path(original.__file__).read_text()
    assert source.count(BEFORE) == 1
    path = folder / "with_breakpoint.py"
    path.write_text(source.replace(BEFORE, "        breakpoint()\n" + BEFORE))
    spec = importlib.util.spec_from_file_location("pagelens.kernels.with_breakpoint", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_message(client: httpx.Client) -> str:
    with client.stream("GET", "/pagelens/events") as stream:
        return next(line for line in stream.iter_lines() if line.startswith("data:"))


def test_the_page_stays_up_while_a_program_stands(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand = StandInKernel()
    monkeypatch.setattr(sys, "breakpointhook", stand)
    assert site.loop.engine.loaded is not None
    attention = site.loop.engine.loaded.attention
    kernel = kernel_with_breakpoint(tmp_path)
    attention.kernels = replace(attention.kernels, paged_attention=kernel.paged_attention)
    with httpx.Client(base_url=site.url, timeout=10) as client:
        site.loop.submit("A hacker is", SamplingParams(max_tokens=1))
        assert stand.reached.wait(30)
        table = list(site.loop.engine.manager.tables["A.0"])
        answers: list[httpx.Response] = []
        command = threading.Thread(
            target=lambda: answers.append(client.post("/pagelens/command", json={"command": "submit", "prompt": "A"}))
        )
        command.start()
        try:
            assert client.get("/").status_code == 200
            assert client.get("/pagelens/static/page.js").status_code == 200
            message = first_message(client)
            assert '"phase":"launch"' in message and '"A.0"' in message, "the picture is that of the standing step"
            assert not answers, "a command waits for the engine"
        finally:
            stand.go_on.set()
        command.join(30)
        assert answers[0].json() == {"requests": ["B"]}
    filename, line, frame = stand.seen[0]
    assert filename == str(tmp_path / "with_breakpoint.py")
    assert Path(filename).read_text().splitlines()[line - 1].strip() == "breakpoint()", "pdb shows the right line"
    inside = frame["inside"].handle.data
    assert frame["block"].handle.data[inside].tolist() == table * int(inside.sum())
