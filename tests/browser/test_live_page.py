"""The live page as a user meets it, in a real Chromium, on the real engine."""

import msgspec
import pytest
from chromium import Browser
from live_site import Site, Visitor, map_of
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(60)]


def send(page: Page, prompt: str = "A hacker is", max_tokens: int = 400, **fields: str) -> None:
    page.get_by_label("prompt").fill(prompt)
    page.get_by_label("max tokens").fill(str(max_tokens))
    for label, value in fields.items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="send", exact=True).click()


def halt(page: Page) -> None:
    page.get_by_role("button", name="halt").click()
    page.wait_for_function("Pagelens.source.history.map.halted_after !== ''")


def steps(page: Page) -> int:
    totals = map_of(page)["totals"]
    return int(totals.get("StepCommitted", 0) + totals.get("StepFailed", 0))


def assert_same_picture(page: Page, site: Site) -> None:
    """While halted, the page's map is the server's, in every block and table."""
    newest = site.loop.log.next_seq - 1
    page.wait_for_function("seq => Pagelens.source.history.map.seq === seq", arg=newest)
    assert map_of(page) == msgspec.json.decode(msgspec.json.encode(site.loop.log.snapshot()))


def test_a_prompt_streams_and_blocks_fill(visitor: Visitor) -> None:
    page = visitor.open()
    send(page, max_tokens=40)
    row = page.locator("article.sequence").first
    expect(row.locator(".prompt")).to_have_text("A hacker is")
    expect(row.locator(".chip")).not_to_have_count(0)
    expect(row.locator(".status")).to_have_text("finished: token limit")
    expect(row.locator(".answer")).not_to_be_empty()
    expect(page.locator("[data-count=cached]")).not_to_have_text("0")
    sequence = list(map_of(page)["sequences"].values())[-1]
    assert len(sequence["token_ids"]) == sequence["num_prompt_tokens"] + 40


def test_halt_stops_one_step_moves_by_one_and_run_goes_on(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    send(page, samples="3")
    page.wait_for_function("Pagelens.source.history.map.totals.BlockCopied > 0")
    halt(page)
    expect(page.locator("[data-part=engine-state]")).to_contain_text("halted")
    standing = steps(page)
    page.wait_for_timeout(400)
    assert steps(page) == standing
    for number in (1, 2):
        page.get_by_role("button", name="one step").click()
        page.wait_for_function("n => Pagelens.source.history.map.totals.StepCommitted === n", arg=standing + number)
        assert_same_picture(page, site)
    page.wait_for_timeout(300)
    assert steps(page) == standing + 2
    page.get_by_role("button", name="▶ run").click()
    page.wait_for_function("n => Pagelens.source.history.map.totals.StepCommitted > n + 5", arg=standing)
    assert page.locator("[data-command=run]").is_disabled()


def test_the_page_shows_what_the_server_has_after_eight_mixed_requests(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    page.get_by_role("button", name="send 8 mixed requests").click()
    page.wait_for_function(
        "Object.values(Pagelens.source.history.map.sequences).filter(v => v.status === 'running').length >= 8"
    )
    page.wait_for_function("Pagelens.source.history.map.ref_count.some(n => n > 1)")
    halt(page)
    assert_same_picture(page, site)
    picture = site.loop.log.snapshot()
    for name, view in picture.sequences.items():
        if view.status == "running":
            row = page.locator(f"[data-sequence='{name}']")
            expect(row.locator(".chip")).to_have_text([str(block) for block in view.table])
    expect(page.locator("[data-count=used]")).to_have_text(str(picture.state.count("used")))


def test_four_tabs_are_live_at_once_over_one_connection(visitor: Visitor, site: Site) -> None:
    pages = [visitor.open() for _ in range(4)]
    send(pages[0])
    for page in pages:
        page.bring_to_front()
        page.wait_for_function("Object.values(Pagelens.source.history.map.sequences).some(v => v.status === 'running')")
        before = map_of(page)["seq"]
        page.wait_for_function("seq => Pagelens.source.history.map.seq > seq + 10", arg=before)
    assert site.server.config.app.state.stream._num_readers == 1
    halt(pages[2])
    for page in pages:
        assert_same_picture(page, site)
        expect(page.locator("[data-part=engine-state]")).to_contain_text("halted")


def test_a_browser_without_shared_workers_has_a_stream_per_tab(visitor: Visitor, site: Site) -> None:
    visitor.context.add_init_script("delete window.SharedWorker")
    page = visitor.open()
    send(page, max_tokens=20)
    page.wait_for_function("Object.values(Pagelens.source.history.map.sequences).at(-1)?.token_ids.length > 20")
    halt(page)
    assert_same_picture(page, site)


def test_a_viewer_that_missed_events_takes_a_snapshot(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    page.evaluate("Pagelens.source.history.map.seq = -100")
    send(page, max_tokens=20)
    page.wait_for_function("Pagelens.source.history.map.seq > 0")
    halt(page)
    assert_same_picture(page, site)
    assert all("takes a new snapshot" in text for text in visitor.complaints)


def test_hover_and_keys_tell_what_lies_in_a_block(visitor: Visitor) -> None:
    page = visitor.open()
    send(page)
    page.locator("article.running .chip").first.wait_for()
    halt(page)
    chip = page.locator("article.running .chip").first
    block = chip.inner_text()
    chip.hover()
    detail = page.locator("[data-part=detail]")
    expect(detail.locator("h3")).to_have_text(f"Block {block}")
    expect(detail).to_contain_text("(logical 0)")
    expect(detail.locator(".token").first).to_have_text("A")
    page.mouse.move(0, 0)
    page.locator("canvas.overlay").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(detail.locator("h3")).to_have_text("Block 1pinned")
    expect(page.locator("[aria-live=polite]", has_text="Block 1:")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(detail).to_contain_text("Point at a block")


def test_pointing_at_the_map_shows_the_chip_and_a_click_pins(visitor: Visitor) -> None:
    page = visitor.open()
    send(page)
    page.locator("article.running .chip").first.wait_for()
    halt(page)
    block = int(page.locator("article.running .chip").first.inner_text())
    x, y = page.evaluate(POINT_OF_BLOCK, block)
    page.mouse.move(x, y)
    expect(page.locator(".chip.selected")).to_have_text([str(block)])
    page.mouse.click(x, y)
    page.mouse.move(0, 0)
    expect(page.locator("[data-part=detail] h3")).to_have_text(f"Block {block}pinned")


def test_what_is_pinned_lies_beside_the_map_covers_no_table_and_can_be_closed(visitor: Visitor) -> None:
    page = visitor.open()
    page.set_viewport_size({"width": 1280, "height": 800})
    send(page)
    page.locator("article.running .chip").first.wait_for()
    halt(page)
    boxes = """() => ["[data-part=detail]", ".block-tables"].map(name => {
        const { top, bottom, height } = document.querySelector(name).getBoundingClientRect();
        return { top, bottom, height };
    })"""
    _, tables_before = page.evaluate(boxes)
    page.locator("article.running .chip").first.click()
    page.mouse.move(0, 0)
    detail, tables = page.evaluate(boxes)
    assert detail["height"] > 150 and detail["bottom"] <= 800, "seen without scrolling"
    assert tables["top"] > detail["bottom"]
    assert tables["top"] == tables_before["top"], "a chip stays under the pointer"
    page.get_by_role("button", name="let go of what is pinned").click()
    assert page.evaluate("Pagelens.live.viewer.selection.pinnedBlock") is None
    expect(page.get_by_role("button", name="let go of what is pinned")).to_be_hidden()


POINT_OF_BLOCK = """block => {
    const { overlay, view } = Pagelens.live.viewer.blockMap;
    const { left, top } = overlay.getBoundingClientRect();
    return view.corner(block).map((value, axis) => [left, top][axis] + value + view.cell / 2);
}"""


def test_what_the_server_refuses_is_said_beside_the_prompt(visitor: Visitor) -> None:
    page = visitor.open()
    error = page.locator("[data-part=error]")
    send(page, prompt="")
    expect(error).to_contain_text("the prompt is empty")
    send(page, max_tokens=0)
    expect(error).to_contain_text("max_tokens is 0, allowed is at least 1")
    send(page, temperature="-1")
    expect(error).to_contain_text("temperature is -1")
    send(page, temperature="")
    expect(error).to_contain_text("temperature is no number")
    send(page, prompt="word " * 3000, temperature="1")
    expect(error).to_contain_text("max_model_len")
    send(page, max_tokens=3)
    expect(error).to_be_hidden()
    expected = [text for text in visitor.complaints if "400" in text]
    assert visitor.complaints == expected
    visitor.complaints.clear()


def test_a_request_can_be_aborted(visitor: Visitor) -> None:
    page = visitor.open()
    send(page)
    row = page.locator("article.running").first
    name = row.get_attribute("data-sequence")
    row.get_by_role("button", name="abort").click()
    expect(page.locator(f"[data-sequence='{name}'] .status")).to_have_text("aborted")


def test_speed_is_shared_by_all_viewers(visitor: Visitor, site: Site) -> None:
    first, second = visitor.open(), visitor.open()
    first.get_by_label("most steps per second").fill("3")
    expect(second.locator("[data-part=speed-text]")).to_have_text("≤ 4 steps/s")
    assert site.loop.steps_per_second == 4


def test_markup_in_a_prompt_stays_text(visitor: Visitor) -> None:
    page = visitor.open()
    page.evaluate("window.fooled = false")
    prompt = '<img src=x onerror="window.fooled = true"><b>bold</b>'
    send(page, prompt=prompt, max_tokens=4)
    row = page.locator("article.sequence").first
    expect(row.locator(".prompt")).to_have_text(prompt)
    x, y = page.evaluate(POINT_OF_BLOCK, 0)
    page.mouse.move(x, y)
    page.wait_for_timeout(300)
    assert page.evaluate("window.fooled") is False
    assert page.locator(".pagelens img").count() == 0
    assert page.locator(".tables b", has_text="bold").count() == 0


def test_nothing_leaves_the_machine_and_the_console_is_clean(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    send(page, max_tokens=10)
    page.get_by_role("button", name="send 8 mixed requests").click()
    page.wait_for_function("Pagelens.source.history.map.totals.TokensGenerated > 12")
    page.get_by_role("tab", name="About this engine").click()
    expect(page.get_by_text("why this kernel")).to_be_visible()
    expect(page.get_by_text(site.loop.engine.kernel["why"])).to_be_visible()
    page.get_by_role("tab", name="Live").click()
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.wait_for_timeout(500)
    assert visitor.complaints == []
    assert [url for url in visitor.urls if not url.startswith((site.url, "data:", "blob:"))] == []


def test_who_looks_back_when_the_server_is_restarted_is_left_alone(chromium: Browser) -> None:
    site = Site()
    context = chromium.new_context()
    try:
        page = Visitor(context, site).open()
        send(page, max_tokens=5)
        page.wait_for_function("Pagelens.source.history.map.finished.length === 1")
        page.get_by_role("button", name="to the event before").click()
        expect(page.locator(".you .behind")).to_have_text("1 behind")
        where = page.locator(".you .where").inner_text()
        site.stop()
        site.start()
        banner = page.locator("[data-part=banner]")
        expect(banner).to_contain_text("The server has begun a new run. You still look at the one before it.")
        expect(page.locator(".you .where")).to_have_text(where)
        banner.get_by_role("button", name="back to the engine").click()
        expect(page.locator(".you .where")).to_have_text("event -1 · before step 0")
        send(page, max_tokens=5)
        page.wait_for_function("Pagelens.live.viewer.map.finished.length === 1")
    finally:
        context.close()
        site.stop()


def test_a_restarted_server_is_picked_up_as_a_new_run(chromium: Browser) -> None:
    site = Site()
    context = chromium.new_context()
    try:
        page = Visitor(context, site).open()
        send(page, max_tokens=5)
        page.wait_for_function("Pagelens.source.history.map.finished.length === 1")
        site.stop()
        expect(page.locator("[data-part=connection]")).to_contain_text("connection lost")
        site.start()
        expect(page.locator("[data-part=connection]")).to_contain_text(f"new run {site.loop.log.header.run}")
        assert map_of(page)["finished"] == []
        send(page, max_tokens=5)
        page.wait_for_function("Pagelens.source.history.map.finished.length === 1")
        assert_same_picture(page, site)
    finally:
        context.close()
        site.stop()
