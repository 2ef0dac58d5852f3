"""The timeline, the counters and the memory bars as a user moves in them, in a real Chromium."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from chromium import Browser
from live_site import Visitor
from playwright.sync_api import Page, expect
from scripted import crowded_run

from pagelens.engine.kvtrace import encode_event
from pagelens.viz.scripts import STATIC, VIEWER_SCRIPTS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(60)]

ROW_HEIGHT = 18


@pytest.fixture(scope="module")
def recording() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A crowded run that swaps: samples, beams, preemptions."""
    log = crowded_run(host_blocks=30).log
    events = [json.loads(encode_event(event)) for event in log.read(0) or []]
    return msgspec.to_builtins(log.header, str_keys=True), events


@pytest.fixture
def page(chromium: Browser, recording: tuple[dict[str, Any], list[dict[str, Any]]]) -> Iterator[Page]:
    """A viewer of the recording in a page without a server, as in an exported file; nothing may go wrong in it."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1600})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content('<body style="margin: 0"><div class="pagelens"><div id="viewer"></div></div></body>')
    page.add_style_tag(path=str(STATIC / "pagelens.css"))
    for name in VIEWER_SCRIPTS:
        page.add_script_tag(path=str(STATIC / name))
    page.evaluate(
        """([header, events]) => {
            const history = new History(header, {...MemoryMap.empty(header.num_blocks, header.block_size)});
            for (const event of events) history.append(event);
            window.viewer = new Viewer(document.getElementById("viewer"));
            viewer.open(history);
        }""",
        list(recording),
    )
    yield page
    page.close()
    assert errors == []


def open_panel(page: Page, title: str) -> None:
    page.get_by_role("button", name=title, exact=True).first.click()
    if title == "Timeline":
        page.wait_for_function("viewer.panels.open.timeline.scale")


def step_of(page: Page) -> int:
    return int(page.evaluate("viewer.map.step"))


def shown(page: Page) -> tuple[float, float]:
    """First step shown and how many."""
    first, span = page.evaluate("[viewer.panels.open.timeline.scale.from, viewer.panels.open.timeline.scale.span]")
    return first, span


def click_step(page: Page, step: float, row: int = 0) -> None:
    x = page.evaluate("step => viewer.panels.open.timeline.scale.x(step)", step)
    page.locator(".timeline-rows canvas").click(position={"x": x, "y": row * ROW_HEIGHT + 9})


def test_a_click_goes_to_the_end_of_the_step_and_wide_steps_have_phases(page: Page) -> None:
    open_panel(page, "Timeline")
    click_step(page, 12.9)
    assert step_of(page) == 12
    assert page.evaluate("viewer.event(viewer.map.seq).kind") == "StepCommitted"
    expect(page.locator(".you .where")).to_contain_text("step 12")
    page.locator(".timeline-rows canvas").focus()
    for _ in range(4):
        page.keyboard.press("+")
    for part, phase in ((0.1, "plan"), (0.5, "launch"), (0.9, "commit")):
        click_step(page, 12 + part)
        assert page.evaluate("[viewer.map.step, viewer.map.phase]") == [12, phase]


def test_a_drag_scrubs_and_the_range_stays(page: Page) -> None:
    open_panel(page, "Timeline")
    before = shown(page)
    box = page.locator(".timeline-rows canvas").bounding_box()
    assert box
    seen = []
    x = page.evaluate("[30, 20, 10].map(step => viewer.panels.open.timeline.scale.x(step + 0.9))")
    page.mouse.move(box["x"] + x[0], box["y"] + 9)
    page.mouse.down()
    for at in x:
        page.mouse.move(box["x"] + at, box["y"] + 9)
        seen.append(step_of(page))
    page.mouse.up()
    page.mouse.move(box["x"] + x[0], box["y"] + 9)
    assert seen == [30, 20, 10]
    assert step_of(page) == 10
    assert shown(page) == before


def test_the_brush_chooses_moves_and_resizes_the_range(page: Page) -> None:
    open_panel(page, "Timeline")
    strip = page.locator(".timeline-overview")
    box = strip.bounding_box()
    assert box
    newest = page.evaluate("viewer.history.newest")

    def drag(start: float, end: float) -> None:
        x = page.evaluate("steps => steps.map(step => viewer.panels.open.timeline.overview.all.x(step))", [start, end])
        page.mouse.move(box["x"] + x[0], box["y"] + 15)
        page.mouse.down()
        page.mouse.move(box["x"] + x[1], box["y"] + 15, steps=4)
        page.mouse.up()

    drag(10, 20)
    assert shown(page) == pytest.approx((10, 10), abs=0.2)
    assert not page.evaluate("viewer.following"), "whoever brushes looks at the past"
    assert page.evaluate("viewer.map.seq") == newest
    drag(15, 25)
    assert shown(page) == pytest.approx((20, 10), abs=0.3)
    drag(30, 35)
    assert shown(page) == pytest.approx((20, 15), abs=0.3)
    expect(page.locator(".timeline-head")).to_contain_text("steps 20–34 of 0–")
    expect(page.get_by_role("button", name="follow the newest event (Escape)")).to_be_disabled()
    page.locator(".timeline-rows canvas").focus()
    page.keyboard.press("Escape")
    page.wait_for_function("viewer.panels.open.timeline.scale.to > viewer.history.steps.lastStep")


def test_the_wheel_zooms_about_the_pointer(page: Page) -> None:
    open_panel(page, "Timeline")
    click_step(page, 20.9)
    before = shown(page)
    x = page.evaluate("viewer.panels.open.timeline.scale.x(20)")
    page.locator(".timeline-rows canvas").hover(position={"x": x, "y": 9})
    scrolled = page.evaluate("scrollY")
    for _ in range(3):
        page.mouse.wheel(0, -100)
    page.wait_for_function("span => viewer.panels.open.timeline.scale.span < span * 0.6", arg=before[1])
    assert page.evaluate("viewer.panels.open.timeline.scale.x(20)") == pytest.approx(x, abs=2)
    assert page.evaluate("scrollY") == scrolled


def test_keys_move_by_steps_and_rows_and_say_where(page: Page) -> None:
    open_panel(page, "Timeline")
    plot = page.locator(".timeline-rows canvas")
    plot.focus()
    spoken = page.locator(".content.timeline [aria-live]")
    page.keyboard.press("Home")
    assert step_of(page) == 0
    expect(spoken).to_contain_text("step 0, committed: ")
    expect(spoken).to_contain_text("A.0 prefill, 9 tokens")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("viewer.map.step === 1")
    expect(spoken).to_contain_text("A.0 decode, 1 token")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("viewer.map.step === 0")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("viewer.selection.sequence") == "A.0"
    expect(spoken).to_contain_text("A.0: prefill, 9 tokens, in step 0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("viewer.selection.chosen") == "B.0"
    page.keyboard.press("End")
    assert page.evaluate("viewer.map.seq === viewer.history.newest")
    assert "sequences" in (plot.get_attribute("aria-label") or "")


def test_pointing_at_a_row_says_what_it_does_and_its_name_pins_it(page: Page) -> None:
    open_panel(page, "Timeline")
    preempted = page.evaluate(
        """() => viewer.panels.open.timeline.shown.flatMap((row, index) =>
            row.spans.filter(span => span.kind === "swapped").map(span => [index, row.name, span.from]))[0]"""
    )
    row, name, step = preempted
    plot = page.locator(".timeline-rows canvas")
    x = page.evaluate("step => viewer.panels.open.timeline.scale.x(step + 0.5)", step)
    plot.hover(position={"x": x, "y": row * ROW_HEIGHT + 9})
    expect(page.locator(".timeline-head")).to_contain_text(f"{name} in step {step}: swapped out since step {step}")
    assert page.evaluate("viewer.selection.sequence") == name
    plot.click(position={"x": 20, "y": row * ROW_HEIGHT + 9})
    assert page.evaluate("viewer.selection.chosen") == name
    assert page.evaluate("viewer.following"), "the name is no moment"
    plot.click(position={"x": 20, "y": row * ROW_HEIGHT + 9})
    assert page.evaluate("viewer.selection.chosen") is None


def test_forks_stand_below_their_parent(page: Page) -> None:
    open_panel(page, "Timeline")
    names = page.evaluate("viewer.history.steps.inOrder().map(row => row.name)")
    assert names[:5] == ["A.0", "B.0", "B.1", "B.2", "C.0"]
    parents = page.evaluate("Object.fromEntries(viewer.history.steps.inOrder().map(row => [row.name, row.parent]))")
    for child, parent in parents.items():
        assert not parent or names.index(parent) < names.index(child)


def test_more_rows_than_fit_scroll(page: Page) -> None:
    open_panel(page, "Timeline")
    box = page.locator(".timeline-rows")
    assert page.evaluate("viewer.panels.open.timeline.shown.length") > 16
    box.hover(position={"x": 20, "y": 20})
    page.mouse.wheel(0, 10 * ROW_HEIGHT)
    page.wait_for_function("document.querySelector('.timeline-rows').scrollTop > 0")
    top = page.evaluate("document.querySelector('.timeline-rows').scrollTop")
    name = page.evaluate("index => viewer.panels.open.timeline.shown[index].name", (top + 9) // ROW_HEIGHT)
    box.click(position={"x": 20, "y": 9})
    assert page.evaluate("viewer.selection.chosen") == name


def test_without_plotly_the_counters_are_a_table(page: Page) -> None:
    open_panel(page, "Counters")
    used = page.locator("[data-figure=used] td")
    peak = page.evaluate("Math.max(...viewer.history.steps.steps.map(step => step.memory?.used ?? 0))")
    expect(used.nth(1)).to_have_text(str(peak))
    page.evaluate("viewer.goTo(viewer.history.steps.steps[3].last)")
    now = page.evaluate("viewer.history.steps.steps[3].memory.used")
    expect(used.nth(0)).to_have_text(str(now))
    expect(page.locator(".charts")).to_be_hidden()


def test_the_bars_say_how_many_would_fit(page: Page) -> None:
    open_panel(page, "KV memory, this instant")
    page.evaluate("viewer.goTo(viewer.history.steps.steps[2].last)")
    paged = page.locator("[data-memory=Paged]")
    tokens = page.evaluate("viewer.history.steps.steps[2].memory.held")
    running = page.evaluate("viewer.history.steps.steps[2].memory.running")
    expect(paged.locator(".count")).to_have_text(f"{running} running")
    assert f"Paged: {tokens} of 56 slots hold tokens" in (paged.locator(".track").get_attribute("aria-label") or "")
    fits = page.locator("[data-memory='true length'] .count")
    expect(fits).to_contain_text(f"of {running} fit")
    assert int((fits.text_content() or "").split()[0]) < running
    expect(page.locator(".content.memory_bars")).to_contain_text("holds each shared prompt once")


def test_the_timeline_follows_live_until_the_user_scrubs(visitor: Visitor) -> None:
    page = visitor.open()
    page.evaluate("window.viewer = Pagelens.live.viewer")
    page.get_by_label("samples").fill("3")
    page.get_by_label("max tokens").fill("300")
    page.get_by_role("button", name="send", exact=True).click()
    page.wait_for_function("viewer.map.totals.StepCommitted > 5")
    open_panel(page, "Timeline")
    page.wait_for_function("viewer.panels.open.timeline.scale.to > 100")
    first = shown(page)[0]
    page.wait_for_function("from => viewer.panels.open.timeline.scale.from > from + 3", arg=first)
    click_step(page, shown(page)[0] + 20.9)
    standing = shown(page)
    newest = page.evaluate("viewer.history.newest")
    page.wait_for_function("newest => viewer.history.newest > newest + 60", arg=newest)
    page.wait_for_timeout(100)
    assert shown(page) == standing
    page.get_by_role("button", name="follow the newest event (Escape)").click()
    page.wait_for_function("from => viewer.panels.open.timeline.scale.from > from + 3", arg=standing[0])
    assert visitor.complaints == []


def test_the_counters_draw_charts_and_a_click_goes_there(visitor: Visitor) -> None:
    page = visitor.open()
    page.evaluate("window.viewer = Pagelens.live.viewer")
    assert not any("plotly" in url for url in visitor.urls), "it is large: loaded when it is needed"
    finished = page.evaluate("viewer.map.totals.SequenceFinished ?? 0")
    page.get_by_label("max tokens").fill("60")
    page.get_by_role("button", name="send", exact=True).click()
    page.wait_for_function("number => viewer.map.totals.SequenceFinished > number", arg=finished)
    open_panel(page, "Counters")
    plots = page.locator(".charts .plot")
    plots.locator(".main-svg").first.wait_for()
    expect(plots).to_have_count(6)
    expect(page.locator(".charts .plot .scatterlayer .trace").first).to_be_attached()
    expect(page.locator(".charts .modebar")).to_have_count(0)
    box = plots.first.bounding_box()
    assert box
    plots.first.click(position={"x": box["width"] / 2, "y": 110})
    assert not page.evaluate("viewer.following")
    steps = page.evaluate("[viewer.history.steps.firstStep, viewer.map.step, viewer.history.steps.lastStep]")
    assert steps[0] + 10 < steps[1] < steps[2] - 10
    page.wait_for_function("document.querySelector('.charts .plot .shapelayer path')")
    page.get_by_label("counters over").select_option("seconds")
    plots.first.click(position={"x": box["width"] / 2, "y": 110})
    assert visitor.complaints == []
    assert all(url.startswith(visitor.site.url) or url.startswith(("data:", "blob:")) for url in visitor.urls)
