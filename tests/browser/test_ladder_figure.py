"""The figures of the kernel ladder in a real browser: they show what the interpreter saw, tile by tile."""

import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser
from playwright.sync_api import Page

from pagelens.viz.scripts import STATIC, VIEWER_SCRIPTS

pytestmark = [pytest.mark.browser, pytest.mark.triton]

DOCS = Path(__file__).parents[2] / "docs"
STEPS = ["one_head", "grouped_heads", "any_query_length", "split_context", "engine"]


@pytest.fixture(scope="module")
def build() -> Any:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("build_tools.kernel_ladder")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture
def figure(chromium: Browser, build: Any) -> Any:
    pages: list[Page] = []

    def show(name: str) -> Page:
        page = chromium.new_page()
        pages.append(page)
        page.set_content(re.sub(r"<script src=.*</script>", "", build.walk(name)))
        for script in [*(STATIC / name for name in VIEWER_SCRIPTS), DOCS / "javascripts/kernel_ladder.js"]:
            page.add_script_tag(path=str(script))
        return page

    yield show
    for page in pages:
        page.close()


def lit(page: Page) -> list[int]:
    return [int(text.partition("×")[0]) for text in page.locator(".chip.lit").all_text_contents()]


@pytest.mark.parametrize("name", STEPS)
def test_each_tile_lights_the_blocks_that_its_program_loaded(
    figure: Callable[[str], Page], build: Any, name: str
) -> None:
    page = figure(name)
    page.locator(".walk").focus()
    times: Counter[int] = Counter()
    programs = build.launch(name)["programs"]
    for program in programs:
        for number, tile in enumerate(program["tiles"], start=1):
            times.update(tile["key_blocks"])
            assert lit(page) == tile["key_blocks"]
            assert f"tile {number} of {len(program['tiles'])}" in page.locator(".where").inner_text()
            assert f"query head{'s'[: len(program['heads']) - 1]} {', '.join(map(str, program['heads']))}," in (
                page.locator(".program").inner_text()
            )
            page.keyboard.press("ArrowRight")
    assert page.get_by_title("the next tile (Right)").is_disabled()
    shown = [text.split("×") for text in page.locator(".chip:not(:has(small:empty))").all_text_contents()]
    assert {int(block): int(loads) for block, loads in shown} == times


def test_a_program_is_chosen_in_the_grid(figure: Callable[[str], Page], build: Any) -> None:
    page = figure("one_head")
    page.get_by_role("button", name="sequence 2, head 3").click()
    assert "Program (2, 3) serves the token at position 29 of C" in page.locator(".program").inner_text()
    assert page.locator('[aria-pressed="true"]').evaluate("cell => cell === document.activeElement")
    (program,) = [each for each in build.launch("one_head")["programs"] if each["program"] == [2, 3, 0]]
    assert lit(page) == program["tiles"][0]["key_blocks"]


def test_the_figures_count_what_was_loaded(build: Any) -> None:
    launches = {name: build.launch(name) for name in STEPS}
    assert launches["one_head"]["keys"] == 2 * launches["one_head"]["keys_there"], "a group of two heads"
    assert launches["grouped_heads"]["keys"] == launches["grouped_heads"]["keys_there"]
    assert launches["split_context"]["keys"] == launches["split_context"]["keys_there"]
    assert launches["engine"]["keys"] < launches["any_query_length"]["keys"] / 1.5, "a window"
    for name, launch in launches.items():
        sizes = zip(*(each["program"] for each in launch["programs"]), strict=True)
        assert all(max(places) < size for places, size in zip(sizes, launch["grid"], strict=True)), name


@pytest.mark.parametrize("number", range(1, 6))
def test_every_step_has_a_page_with_its_source_counts_walk_and_test(number: int) -> None:
    page = DOCS / "kernel_ladder" / f"{number}_{STEPS[number - 1]}.md"
    text = page.read_text(encoding="utf-8")
    for part in ("source", "counts", "walk"):
        assert f"<!-- pagelens: ladder-{part} {STEPS[number - 1]} -->" in text
    assert re.search(r"^<!-- pagelens: code tests/.*:test_equals_the_oracle -->$", text, re.MULTILINE)
    assert f"kernel_ladder/{page.name}" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
