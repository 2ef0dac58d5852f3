"""The recordings in the lessons, opened from the disk: the same viewer, at the moment that the page names."""

import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chromium import Browser
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def replays() -> Any:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("build_tools.replays")
    finally:
        sys.path.remove(str(DOCS))


def page_with(replays: Any, folder: Path, what: str) -> Path:
    for name, content in replays.assets().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    links = (
        f'<link rel="stylesheet" href="{replays.STYLES}">{replays.replay(what)}<script src="{replays.SCRIPT}"></script>'
    )
    page = folder / "lesson.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><body data-md-color-scheme="slate">{links}', encoding="utf-8"
    )
    return page


@pytest.mark.parametrize(
    ("what", "title"),
    [
        ("02_copy_on_write.three_samples@BlockCopied", "Copy-on-write."),
        ("05_preemption.swapping_engine@RequestPreempted", "Preemption."),
    ],
)
def test_a_lesson_replays_its_run_offline(
    chromium: Browser, replays: Any, tmp_path: Path, what: str, title: str
) -> None:
    context = chromium.new_context(offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_with(replays, tmp_path, what).as_uri())
    expect(page.locator("[data-part=headline-title]")).to_have_text(title)
    before = page.locator(".you .where").inner_text()
    page.locator("canvas.overlay").focus()
    page.get_by_role("button", name="to the event before").click()
    expect(page.locator(".you .where")).not_to_have_text(before)
    expect(page.locator("body")).to_have_class("dark")
    page.get_by_role("button", name="follow the newest event").click()
    lesson, function = what.partition("@")[0].split(".")
    log = getattr(replays.lessons.module(lesson), function)().log
    page.wait_for_function(
        "seq => document.querySelector('.where').textContent.includes(`event ${seq} `)", arg=log.next_seq - 1
    )
    blank = msgspec.to_builtins(log.snapshot())["state"].count("blank")
    expect(page.locator("[data-count=blank]").first).to_have_text(str(blank))
    assert complaints == []
    context.close()


def test_a_kind_of_event_that_does_not_exist_is_an_error(replays: Any) -> None:
    with pytest.raises(ValueError, match="names BlockCloned, which is no kind of event"):
        replays.replay("02_copy_on_write.three_samples@BlockCloned")
