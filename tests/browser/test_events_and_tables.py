"""The event list, the block tables and their text, a block's causes and a token's address, by what a user does."""

import re
from pathlib import Path
from typing import Any

import pytest
from live_site import Site, Visitor
from playwright.sync_api import Locator, Page, expect

from pagelens.viz.scripts import STATIC

pytestmark = [pytest.mark.browser, pytest.mark.timeout(90)]

ROOT = STATIC.parents[1]
VIEWER = "Pagelens.live.viewer"

PROMPT = "A hacker is a person who enjoys exploring the details of programmable systems and how to stretch them"
"""Long enough for a full block that samples share, and no multiple of the block size: its last block is copied."""


def run_samples(visitor: Visitor, samples: int = 3, tokens: int = 30) -> Page:
    """A page on which a request with several samples has run for a while, halted."""
    page = visitor.open()
    page.get_by_label("prompt", exact=True).fill(PROMPT)
    page.get_by_label("max tokens").fill("400")
    page.get_by_label("samples").fill(str(samples))
    page.get_by_role("button", name="send", exact=True).click()
    page.wait_for_function(
        f"n => Object.values({VIEWER}.map?.sequences ?? {{}}).some(v => v.status === 'running'"
        " && v.token_ids.length > v.num_prompt_tokens + n)",
        arg=tokens,
    )
    page.get_by_role("button", name="halt").click()
    page.wait_for_function("Pagelens.source.history.map.halted_after !== ''")
    return page


def open_events(page: Page) -> Locator:
    page.get_by_role("group", name="panels").get_by_role("button", name="Events").click()
    rows = page.get_by_role("grid", name="events")
    expect(rows.locator(".event").first).to_be_visible()
    return rows


def here(page: Page) -> int:
    return int(page.evaluate(f"{VIEWER}.map.seq"))


def shown_seqs(rows: Locator) -> list[int]:
    return [int(row.get_attribute("data-seq") or -1) for row in rows.locator(".event").all()]


def events_of(site: Site, kind: str) -> list[Any]:
    return [event for event in site.loop.log.read(site.loop.log.oldest_seq) or [] if type(event).__name__ == kind]


def running(site: Site) -> dict[str, Any]:
    pictures = site.loop.log.snapshot().sequences
    return {name: view for name, view in pictures.items() if view.status == "running"}


# the event list


def test_the_list_follows_live_and_a_click_goes_to_an_event(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    rows = open_events(page)
    newest = site.loop.log.next_seq - 1
    expect(rows.locator(f".event[data-seq='{newest}']")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="run", exact=False).first.click()
    page.wait_for_function(f"seq => {VIEWER}.map.seq > seq + 50", arg=newest)
    page.get_by_role("button", name="halt").click()
    page.wait_for_function("Pagelens.source.history.map.halted_after !== ''")
    assert max(shown_seqs(rows)) > newest + 50
    target = rows.locator(".event").nth(2)
    seq = int(target.get_attribute("data-seq") or -1)
    target.locator(".sentence").click()
    assert here(page) == seq
    expect(rows.locator(".event.here")).to_have_attribute("data-seq", str(seq))
    expect(rows.locator(f".event[data-seq='{seq + 1}']")).to_have_class(re.compile("later"))
    expect(page.get_by_text(f"event {seq:,}", exact=False).first).to_be_visible()
    assert visitor.complaints == []


def test_keys_move_from_match_to_match(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    rows = open_events(page)
    copies = [event.seq for event in events_of(site, "BlockCopied")]
    assert len(copies) >= 2
    page.get_by_label("only such events").select_option("copy-on-write")
    expect(page.get_by_role("status").filter(has_text="of")).to_contain_text(f"{len(copies)} of")
    rows.focus()
    page.keyboard.press("Home")
    assert here(page) == copies[0]
    page.keyboard.press("ArrowDown")
    assert here(page) == copies[1]
    page.keyboard.press("ArrowUp")
    assert here(page) == copies[0]
    page.keyboard.press("ArrowUp")
    assert here(page) == copies[0]
    page.keyboard.press("PageDown")
    assert here(page) == copies[-1]
    page.keyboard.press("ArrowRight")  # the user's clock: one event on, whatever the filter
    assert here(page) == copies[-1] + 1
    page.keyboard.press("ArrowUp")
    assert here(page) == copies[-1]
    expect(rows.locator(".event.here .sentence")).to_contain_text("Copy-on-write.")
    holders = [name for name in running(site) if name in rows.locator(".event.here .sentence").inner_text()]
    assert len(holders) >= 2  # the writer, and who still reads the source


def test_groups_kinds_and_words_filter(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    rows = open_events(page)
    kinds = lambda: set(rows.locator(".event").evaluate_all("all => all.map(row => row.dataset.kind)"))  # noqa: E731
    groups = page.get_by_role("group", name="groups of events")
    for name in ("memory", "text", "engine"):
        groups.get_by_role("button", name=name).click()
        expect(groups.get_by_role("button", name=name)).to_have_attribute("aria-pressed", "false")
    assert kinds() <= {"SequenceScheduled", "StepPlanned", "SequenceForked", "SequenceAdmitted", "RequestArrived"}
    page.locator(".event-tools summary").click()
    page.get_by_label("SequenceScheduled").uncheck()
    expect(groups.get_by_role("button", name="scheduling")).to_have_attribute("aria-pressed", "mixed")
    page.get_by_label("StepPlanned").uncheck()
    page.get_by_label("search the events").fill("fork A.1" if "A.1" in running(site) else "fork")
    forks = [e.seq for e in events_of(site, "SequenceForked")]
    page.wait_for_function(
        "() => [...document.querySelectorAll('.event')].every(r => r.dataset.kind === 'SequenceForked')"
    )
    assert set(shown_seqs(rows)) <= set(forks)
    assert shown_seqs(rows)
    page.get_by_label("search the events").fill("there is no such event")
    expect(rows.locator(".event")).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="0 of")).to_be_visible()


def test_an_event_names_its_cause_and_its_line_of_source(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    rows = open_events(page)
    page.get_by_label("only such events").select_option("copy-on-write")
    row = rows.locator(".event").first
    file, line = row.locator("code").inner_text().rsplit(":", 1)
    source = (ROOT / file).read_text().splitlines()
    assert "emit(" in source[int(line) - 1]
    assert "ev.BlockCopied" in source[int(line)]
    copy = events_of(site, "BlockCopied")[0]
    row.hover()
    assert page.evaluate(f"{VIEWER}.highlighted") == [copy.source, copy.destination]
    link = row.locator(".event-link")
    expect(link).to_have_text(re.compile(f"{re.escape(copy.sequence)} computes 1 token"))
    link.click()
    assert here(page) == copy.cause


def test_a_million_events_scroll_and_filter(visitor: Visitor) -> None:
    page = visitor.open()
    page.wait_for_function(f"{VIEWER}.map !== null")
    page.evaluate(MILLION)
    rows = open_events(page)
    rows.focus()
    page.keyboard.press("End")
    expect(rows.locator(".event.here")).to_have_attribute("data-seq", "999999")
    page.keyboard.press("ArrowUp")
    expect(rows.locator(".event.here")).to_have_attribute("data-seq", "999998")
    rows.hover()
    page.mouse.wheel(0, -120)
    page.wait_for_timeout(200)
    first = shown_seqs(rows)[0]
    assert 999_900 < first < 999_995  # a notch of the wheel is a few rows, however long the list
    rows.evaluate("list => { list.scrollTop = list.scrollHeight / 2; }")
    page.wait_for_function("() => Math.abs(Number(document.querySelector('.event').dataset.seq) - 500000) < 2000")
    page.get_by_label("only such events").select_option("halt")
    expect(page.get_by_text("250,000 of 1,000,000 events")).to_be_visible()
    assert rows.locator(".event").count() < 60, "however long the list, few rows exist"


MILLION = """() => {
    const header = Pagelens.source.history.header;
    const history = new History({ ...header, run: "long" }, { ...MemoryMap.empty(64, 16) });
    const at = { step: 1, phase: "idle", t: 0, cause: -1 };
    for (let seq = 0; seq < 1e6;) {
        const events = [];
        for (const end = seq + 5000; seq < end; seq++) {
            events.push(seq % 4 === 0 ? { kind: "EngineHalted", seq, why: "user_halt", after: "commit", ...at }
                : { kind: "EngineContinued", seq, why: "user_run", ...at });
        }
        history.appendText(events.map(event => JSON.stringify(event)).join("\\n"), events);
    }
    Pagelens.live.replay.showing = true;
    Pagelens.live.viewer.open(history, history.newest);
}"""


# tables and text


def test_forks_branch_off_below_their_parent_with_shared_blocks_in_line(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    views = running(site)
    parent = next(name for name, view in views.items() if not view.parent)
    forks = [name for name, view in views.items() if view.parent == parent]
    assert len(forks) == 2
    first = page.locator(f"[data-sequence='{parent}'] .chip").first.bounding_box()
    for name in forks:
        row = page.locator(f"[data-sequence='{name}']")
        expect(row).to_have_class(re.compile("fork"))
        expect(row.locator(".status")).to_have_text(f"↳ fork of {parent} at {views[name].num_prompt_tokens}")
        chip = row.locator(".chip").first.bounding_box()
        assert first and chip and abs(chip["x"] - first["x"]) < 1
        inherited = row.locator(".chip.inherited").all_inner_texts()
        common = [str(b) for b, other in zip(views[name].table, views[parent].table, strict=False) if b == other]
        assert inherited == common
        filled = views[name].num_computed_tokens % 16
        expect(row.locator(".chips .gap")).to_have_text(f"{filled}/16")
    names = page.locator("article.running .name").all_inner_texts()
    assert names[0] == parent


def test_a_picked_token_shows_its_address_and_it_is_the_tensor_s(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    name, view = next((name, view) for name, view in running(site).items() if view.parent)
    row = page.locator(f"[data-sequence='{name}']")
    row.get_by_role("button", name="all").click()
    row.locator(".text").hover()
    position = view.num_computed_tokens - 2
    token = row.locator(f".t[data-position='{position}']")
    token.hover()
    address = page.get_by_role("group", name="address of the token")
    block, slot = view.table[position // 16], position % 16
    expect(address).to_contain_text(
        f"logical block = {position} // 16 = {position // 16}, slot = {position} % 16 = {slot}"
    )
    expect(address).to_contain_text(f"table[{position // 16}] = block {block}")
    expect(row.locator(".chip.selected")).to_have_text(str(block))
    token.click()
    page.mouse.move(0, 0)
    expect(address).to_contain_text(f"Token {position} of {name}")
    assert page.evaluate(f"{VIEWER}.selection.slot") == {"block": block, "slot": slot}
    kv = site.loop.engine.runner.cache.kv  # type: ignore[attr-defined]
    model = site.loop.log.header.model
    for layer, kind, head in ((0, 0, 0), (model["num_layers"] - 1, 1, model["num_kv_heads"] - 1), (1, 0, 1)):
        page.get_by_label("layer", exact=True).select_option(str(layer))
        page.get_by_label("key or value").select_option(str(kind))
        page.get_by_label("head", exact=True).select_option(str(head))
        expected = kv[block, layer, kind, head, slot].data_ptr() - kv.data_ptr()
        expect(address.locator(".byte")).to_contain_text(f"byte {expected:,}")
        element = kv[block, layer, kind, head, slot].storage_offset()
        expect(address).to_contain_text(f"= element {element:,}")
    page.keyboard.press("Escape")
    expect(address).to_be_hidden()


def test_the_keyboard_walks_through_the_tokens_of_a_text(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    name, view = next(iter(running(site).items()))
    text = page.locator(f"[data-sequence='{name}'] .text")
    text.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    position = len(view.token_ids) - 3
    address = page.get_by_role("group", name="address of the token")
    expect(address.locator("h3")).to_contain_text(f"Token {position} of {name}")
    expect(text.locator(".t.picked")).to_have_attribute("data-position", str(position))
    page.keyboard.press("Enter")
    page.get_by_label("prompt", exact=True).focus()
    expect(address.locator("h3")).to_contain_text(f"Token {position} of {name}")


def test_a_sequence_is_pinned_by_its_name_and_by_the_chat_and_let_go_by_escape(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    first, second = list(running(site))[:2]
    button = page.locator(f"[data-sequence='{first}'] .name")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    page.mouse.move(0, 0)
    assert page.evaluate(f"{VIEWER}.selection.family({VIEWER}.map)") == running(site)[first].table
    page.evaluate(
        "sequence => document.dispatchEvent(new CustomEvent('pagelens:show', { detail: { sequence } }))", second
    )
    expect(page.locator(f"[data-sequence='{second}'] .name")).to_have_attribute("aria-pressed", "true")
    expect(button).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("Escape")
    expect(page.locator(f"[data-sequence='{second}'] .name")).to_have_attribute("aria-pressed", "false")
    assert page.evaluate(f"{VIEWER}.following") is True


# the detail of a block


def test_a_block_tells_its_tokens_its_holders_and_what_led_to_it(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    views = running(site)
    name, view = next((name, view) for name, view in views.items() if view.parent)
    shared = view.table[0]
    holders = [other for other, each in views.items() if shared in each.table]
    page.locator(f"[data-sequence='{name}']").get_by_role("button", name="all").click()
    page.locator(f"[data-sequence='{name}'] .chip", has_text=re.compile(f"^{shared}$")).click()
    page.mouse.move(0, 0)
    detail = page.locator("[data-part=detail]")
    for holder in holders:
        expect(detail.get_by_role("button", name=f"{holder} (logical 0)")).to_be_visible()
    expect(detail.locator(".token")).to_have_count(16)
    expect(page.locator(f"[data-sequence='{name}'] .t.inside")).to_have_count(16)
    detail.get_by_role("button", name=f"{holders[-1]} (logical 0)").click()
    expect(page.locator(f"[data-sequence='{holders[-1]}'] .name")).to_have_attribute("aria-pressed", "true")
    detail.locator(".token").nth(3).click()
    expect(page.get_by_role("group", name="address of the token").locator("h3")).to_contain_text("Token 3 of")
    page.keyboard.press("Escape")
    copy = next(e for e in reversed(events_of(site, "BlockCopied")) if e.destination in views[e.sequence].table)
    page.locator(f"[data-sequence='{copy.sequence}'] .chip", has_text=re.compile(f"^{copy.destination}$")).click()
    page.mouse.move(0, 0)
    chain = detail.locator(".chain").first
    links = chain.locator(".event-link")
    expect(links.first).to_have_text(f"block {copy.source} was copied to {copy.destination} for {copy.sequence}")
    expect(links.last).to_have_text(re.compile(" arrived$"))
    links.first.click()
    assert here(page) == copy.seq


def test_the_history_of_a_block_is_the_list_filtered_to_it(visitor: Visitor, site: Site) -> None:
    page = run_samples(visitor)
    copy = events_of(site, "BlockCopied")[-1]
    page.locator(f"[data-sequence='{copy.sequence}'] .chip", has_text=re.compile(f"^{copy.destination}$")).click()
    page.mouse.move(0, 0)
    page.get_by_role("button", name="history of this block").click()
    rows = page.get_by_role("grid", name="events")
    expect(rows).to_be_focused()
    expect(page.get_by_text(f"about block {copy.destination}", exact=False)).to_be_visible()
    events = {e.seq: e for e in site.loop.log.read(site.loop.log.oldest_seq) or []}
    seqs = shown_seqs(rows)
    assert copy.seq in seqs
    for seq in seqs:
        named = [getattr(events[seq], field, None) for field in ("block", "source", "destination")]
        assert copy.destination in named


def test_a_line_of_source_exists_for_every_row(visitor: Visitor) -> None:
    page = run_samples(visitor)
    rows = open_events(page)
    for place in rows.locator("code").all_inner_texts():
        file, line = place.split(" or ")[0].rsplit(":", 1)
        assert "emit(" in Path(ROOT / file).read_text().splitlines()[int(line) - 1]
