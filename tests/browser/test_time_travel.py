"""Two clocks: a viewer looks back and forth on its own while the engine runs on; the engine halts for everyone."""

import re

import msgspec
import pytest
from live_site import Site, Visitor
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(90)]


def send(page: Page, max_tokens: int = 400, samples: int = 1) -> None:
    page.get_by_label("max tokens").fill(str(max_tokens))
    page.get_by_label("samples").fill(str(samples))
    page.get_by_role("button", name="send", exact=True).click()


def where(page: Page) -> int:
    """The event at which the viewer stands, as its own clock tells."""
    page.evaluate("() => new Promise(painted => requestAnimationFrame(() => setTimeout(painted, 50)))")
    text = page.locator(".you .where").inner_text()
    return int(text.split("event ")[1].split(" ·")[0].replace(",", ""))


def wait_for_copies(page: Page) -> None:
    page.wait_for_function("Pagelens.source.history.map.totals.BlockCopied >= 2")


def press(page: Page, name: str) -> None:
    page.get_by_role("group", name="your own clock").get_by_role("button", name=name).click()


def assert_shows_the_past(page: Page, site: Site, seq: int) -> None:
    """The viewer's picture is the server's at that event, in every block and table."""
    expect(page.locator(".you .where")).to_contain_text(f"event {seq:,} ")
    shown = page.evaluate("({...Pagelens.live.viewer.map})")
    assert shown == msgspec.json.decode(msgspec.json.encode(site.loop.log.snapshot(seq)))


def test_a_viewer_steps_back_and_forth_while_the_engine_runs_on(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    send(page, samples=3)
    wait_for_copies(page)
    press(page, "to the one before")
    seq = where(page)
    expect(page.locator("[data-part=headline-title]")).to_have_text("Copy-on-write.")
    for _ in range(5):
        press(page, "to the event before")
        seq -= 1
        assert_shows_the_past(page, site, seq)
    for _ in range(8):
        press(page, "to the next event")
        seq += 1
        assert_shows_the_past(page, site, seq)
    steps = site.loop.engine.num_steps
    page.wait_for_timeout(700)
    assert site.loop.engine.num_steps > steps, "the engine ran on"
    assert where(page) == seq, "and the viewer stayed where its user put it"
    press(page, "follow the newest event")
    page.wait_for_function(
        "Pagelens.live.viewer.following && Pagelens.live.viewer.map.seq === Pagelens.source.history.newest"
    )


def test_keys_move_by_event_by_step_and_to_the_next_copy(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    send(page, samples=3)
    wait_for_copies(page)
    page.locator(".you .where").click()
    page.locator("canvas.overlay").focus()
    page.keyboard.press("p")
    copy = where(page)
    page.keyboard.press("p")
    earlier = where(page)
    assert earlier < copy
    page.keyboard.press("n")
    assert where(page) == copy
    page.get_by_role("group", name="your own clock").get_by_role("button", name="to the next event").focus()
    page.keyboard.press("ArrowRight")
    assert where(page) == copy + 1
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert where(page) == copy - 1
    step = site.loop.log.snapshot(copy - 1).step
    page.keyboard.press("Shift+ArrowRight")
    assert_shows_the_past(page, site, where(page))
    assert site.loop.log.snapshot(where(page)).step == step
    page.keyboard.press("Shift+ArrowRight")
    assert site.loop.log.snapshot(where(page)).step == step + 1
    page.keyboard.press("Escape")
    page.wait_for_function("Pagelens.live.viewer.following")


def test_the_slider_scrubs(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    send(page)
    page.wait_for_function("Pagelens.source.history.map.totals.TokensGenerated > 10")
    slider = page.get_by_label("event, from the oldest held to the newest")
    box = slider.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    page.mouse.up()
    seq = where(page)
    assert_shows_the_past(page, site, seq)
    expect(page.locator(".you .behind")).to_contain_text("behind")
    page.wait_for_timeout(500)
    assert where(page) == seq


def test_what_came_before_the_page_was_opened_is_fetched_when_it_is_looked_at(visitor: Visitor, site: Site) -> None:
    visitor.open().close()
    while site.loop.log.next_seq < 13_000:  # more than a snapshot brings along
        site.loop.halt()
        site.loop.run()
    page = visitor.open()
    oldest = page.evaluate("Pagelens.source.history.oldest")
    assert oldest > site.loop.log.oldest_seq
    send(page, max_tokens=3)
    page.get_by_label("kind of event to jump to").select_option("halt")
    page.evaluate("seq => Pagelens.live.viewer.goTo(seq)", oldest)
    press(page, "to the one before")
    page.wait_for_function("oldest => Pagelens.source.history.oldest < oldest", arg=oldest)
    press(page, "to the event before")
    assert where(page) < oldest
    assert_shows_the_past(page, site, where(page))


def test_a_link_leads_to_the_moment_and_the_block(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    send(page, samples=3)
    wait_for_copies(page)
    press(page, "to the one before")
    block = page.locator("article.running .chip").first
    block.click()
    page.get_by_role("group", name="carry away").get_by_role("button", name="copy a link").click()
    other = visitor.context.new_page()
    other.goto(page.url)
    expect(other.locator(".you .where")).to_have_text(page.locator(".you .where").inner_text())
    expect(other.locator("[data-part=detail] h3")).to_contain_text(f"Block {block.inner_text()}")
    expect(other.locator("[data-part=detail] h3")).to_contain_text("pinned")
    assert_shows_the_past(other, site, where(other))


def test_the_engine_halts_between_phases_and_shows_the_copy_before_it_is_made(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    state = page.locator("[data-part=engine-state]")
    page.get_by_label("event to run to").select_option("copy-on-write")
    page.get_by_role("button", name="run to next", exact=True).click()
    send(page, samples=3)
    expect(state).to_contain_text("halted after plan of step")
    assert site.loop.log.snapshot().pending_copies, "no byte has moved yet"
    assert len(page.evaluate("Pagelens.live.viewer.map.pending_copies")) == 2
    send(page)
    expect(state).to_contain_text("1 queued")
    page.get_by_role("button", name="one phase").click()
    expect(state).to_contain_text("halted after launch of step")
    assert not site.loop.log.snapshot().pending_copies
    page.get_by_role("button", name="one phase").click()
    expect(state).to_contain_text("halted after step")
    last = site.loop.log.snapshot().step - 1
    expect(state).to_contain_text(f"halted after step {last} ")
    expect(page.locator(".you .where")).to_contain_text(f"after step {last}")
    expect(page.locator("[data-part=headline-why]")).to_contain_text(
        re.compile(rf"^\d+ events? ago · (after )?step {last} · ")
    )
    page.get_by_label("event to run to").select_option("token")
    tokens = site.loop.log.snapshot().totals["TokensGenerated"]
    page.get_by_role("button", name="run to next", exact=True).click()
    page.wait_for_function("n => Pagelens.source.history.map.totals.TokensGenerated === n", arg=tokens + 1)
    expect(state).to_contain_text("halted after step")


def test_a_condition_can_be_typed_and_is_refused_in_words(visitor: Visitor, site: Site) -> None:
    page = visitor.open()
    page.get_by_label("event to run to").select_option("condition")
    page.get_by_label("condition").fill("BlockAllocated and colour == 3")
    page.get_by_role("button", name="run to next", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("colour")
    page.get_by_label("condition").fill("BlockAllocated and index == 1")
    page.get_by_label("condition").press("Enter")
    send(page)
    expect(page.locator("[data-part=engine-state]")).to_contain_text("halted after plan")
    tables = [view.table for view in site.loop.log.snapshot().sequences.values() if view.status == "running"]
    assert [len(table) for table in tables] == [2]
    visitor.complaints.clear()


def test_looking_back_moves_nobody_else(visitor: Visitor) -> None:
    here, there = visitor.open(), visitor.open()
    send(here)
    here.wait_for_function("Pagelens.source.history.map.totals.TokensGenerated > 3")
    press(here, "to the event before")
    there.bring_to_front()
    seq = where(there)
    there.wait_for_function("seq => Pagelens.live.viewer.map.seq > seq + 20", arg=seq)
    expect(there.locator(".you .behind")).to_have_text("following")


def test_the_address_leads_to_a_moment_and_nonsense_in_it_to_the_present(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_label("max tokens").fill("30")
    page.get_by_role("button", name="send", exact=True).click()
    page.wait_for_function("Pagelens.source.history.newest > 60")
    seq = page.evaluate("Pagelens.source.history.newest") - 20
    page.evaluate("seq => { location.hash = `seq=${seq}&block=3`; }", seq)
    page.wait_for_function("seq => Pagelens.live.viewer.cursor === seq", arg=seq)
    assert page.evaluate("Pagelens.live.viewer.selection.pinned") == 3
    for nonsense in ("seq=NaN", "seq=-5", "seq=1e99", "seq=&block=2"):
        page.goto("about:blank")
        page.goto(f"{visitor.site.url}#{nonsense}")
        page.wait_for_function("typeof Pagelens !== 'undefined' && Pagelens.live?.viewer.history")
        assert page.evaluate("Pagelens.live.viewer.following"), nonsense
    page.evaluate("seq => { location.hash = `seq=${seq}&block=-1`; }", seq)
    page.wait_for_function("seq => Pagelens.live.viewer.cursor === seq", arg=seq)
    assert page.evaluate("Pagelens.live.viewer.selection.pinned") is None
    assert not visitor.complaints


def test_open_panels_wait_for_the_first_event_and_the_page_lets_nothing_be_moved_before(visitor: Visitor) -> None:
    page = visitor.open()
    for panel in ("Timeline", "Counters", "Events"):
        page.get_by_role("button", name=panel, exact=True).click()
    page.context.add_init_script(
        "window.SharedWorker = undefined; window.EventSource = class { addEventListener() {} };"
    )
    page.reload()
    page.wait_for_function("typeof Pagelens !== 'undefined' && Pagelens.live?.viewer.panels.open.timeline")
    page.set_viewport_size({"width": 900, "height": 700})
    page.wait_for_timeout(500)
    assert page.evaluate("Pagelens.live.viewer.root.inert")
    assert not visitor.complaints
