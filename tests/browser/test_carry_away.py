"""What a viewer takes along: a recording, a picture, one HTML file; and what it brings back."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from chromium import Browser
from live_site import Site, Visitor
from playwright.sync_api import Page, expect
from scripted import crowded_run

from pagelens.engine.events import SCHEMA_VERSION
from pagelens.engine.kvtrace import Trace, TraceWriter
from pagelens.viz.export import single_file

pytestmark = [pytest.mark.browser, pytest.mark.timeout(90)]

DROP = """async ([name, text]) => {
    const file = new File([text], name);
    const transfer = new DataTransfer();
    transfer.items.add(file);
    const target = document.querySelector(".pagelens .map");
    for (const type of ["dragover", "drop"]) {
        target.dispatchEvent(new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));
    }
}"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples and beams on a pool that is too small for them, with swaps."""
    path = tmp_path_factory.mktemp("recording") / "crowded.kvtrace"
    with TraceWriter(path, crowded_run(host_blocks=20).log):
        pass
    return path


def final_picture(path: Path) -> object:
    trace = Trace(path)
    return msgspec.json.decode(msgspec.json.encode(trace.start().fold(trace.events)))


def shown(page: Page, viewer: str = "Pagelens.live.viewer") -> object:
    return page.evaluate(f"({{...{viewer}.map}})")


def open_file(page: Page, path: Path) -> None:
    page.get_by_label("recording to open").set_input_files(path)


def test_a_recording_is_saved_and_opened_again(visitor: Visitor, site: Site, tmp_path: Path) -> None:
    page = visitor.open()
    page.get_by_label("max tokens").fill("30")
    page.get_by_label("samples").fill("2")
    page.get_by_role("button", name="send", exact=True).click()
    page.wait_for_function("Pagelens.source.history.map.finished.length >= 2")
    with page.expect_download() as download:
        page.get_by_role("link", name="save recording").click()
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    assert Trace(saved).header.run == site.loop.log.header.run
    open_file(page, saved)
    banner = page.locator("[data-part=banner]")
    expect(banner).to_contain_text(f"{saved.name}: ")
    page.wait_for_function("!Pagelens.live.viewer.history.growing && !Pagelens.live.viewer.history.live")
    assert shown(page) == final_picture(saved)
    banner.get_by_role("button", name="back to the engine").click()
    expect(banner).to_be_hidden()
    page.wait_for_function("Pagelens.live.viewer.history.live && Pagelens.live.viewer.following")


def test_a_recording_is_dropped_on_the_page_and_scrubbed_while_the_engine_runs_on(
    visitor: Visitor, site: Site, recording: Path
) -> None:
    page = visitor.open()
    page.evaluate(DROP, [recording.name, recording.read_text()])
    expect(page.locator("[data-part=banner]")).to_contain_text(f"{len(Trace(recording).events):,} events")
    page.get_by_label("kind of event to jump to").select_option("swap")
    page.get_by_role("button", name="to the one before (P)").click()
    expect(page.locator("[data-part=headline-title]")).to_contain_text("Swapped")
    seq = page.evaluate("Pagelens.live.viewer.map.seq")
    trace = Trace(recording)
    assert shown(page) == msgspec.json.decode(msgspec.json.encode(trace.start().fold(trace.events[: seq + 1])))
    page.get_by_role("button", name="send", exact=True).click()
    page.wait_for_function("n => Pagelens.source.history.newest > n", arg=site.loop.log.next_seq)
    assert page.evaluate("Pagelens.live.viewer.map.seq") == seq


def test_a_packed_recording_opens_too(visitor: Visitor, recording: Path, tmp_path: Path) -> None:
    page = visitor.open()
    packed = tmp_path / "run.kvtrace.gz"
    packed.write_bytes(gzip.compress(recording.read_bytes()))
    open_file(page, packed)
    expect(page.locator("[data-part=banner]")).to_contain_text(f"{len(Trace(recording).events):,} events")
    page.wait_for_function("!Pagelens.live.viewer.history.live")
    assert shown(page) == final_picture(recording)


def test_what_is_wrong_with_a_file_is_said(visitor: Visitor, recording: Path, tmp_path: Path) -> None:
    page = visitor.open()
    banner = page.locator("[data-part=banner]")
    other = tmp_path / "notes.txt"
    other.write_text("these are my notes\n")
    open_file(page, other)
    expect(banner).to_contain_text("notes.txt: this file does not begin with the header of a .kvtrace")
    expect(page.locator(".you .behind")).to_have_text("following")
    lines = recording.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.kvtrace"
    cut.write_text("".join(lines[:51]) + lines[51][:20])
    open_file(page, cut)
    expect(banner).to_contain_text("cut off after event 49")
    expect(page.locator(".you .where")).to_contain_text("event 49")
    newer = tmp_path / "newer.kvtrace"
    header = json.loads(lines[0]) | {"schema": SCHEMA_VERSION + 1}
    newer.write_text("".join([json.dumps(header) + "\n", *lines[1:]]))
    open_file(page, newer)
    expect(banner).to_contain_text(f"schema {SCHEMA_VERSION + 1}, this page reads up to {SCHEMA_VERSION}")
    gap = tmp_path / "gap.kvtrace"
    gap.write_text("".join(lines[:30] + lines[31:]))
    open_file(page, gap)
    expect(banner).to_contain_text("damaged after event 28")


def test_unknown_kinds_of_events_are_passed_over_and_said(visitor: Visitor, recording: Path, tmp_path: Path) -> None:
    page = visitor.open()
    lines = recording.read_text().splitlines(keepends=True)
    event = json.loads(lines[20])
    event["kind"] = "BlockTeleported"
    newer = tmp_path / "newer.kvtrace"
    lines[20] = json.dumps(event) + "\n"
    newer.write_text("".join(lines[:21]))
    open_file(page, newer)
    expect(page.locator("[data-part=banner]")).to_contain_text("BlockTeleported")


def test_the_map_is_saved_as_a_picture(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open()
    page.get_by_role("button", name="send", exact=True).click()
    page.locator("article.running .chip").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="save the block map as a picture").click()
    picture = tmp_path / "map.png"
    download.value.save_as(picture)
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert width > 300
    assert height > 300


def test_an_exported_file_replays_offline_from_the_disk(chromium: Browser, recording: Path, tmp_path: Path) -> None:
    exported = tmp_path / "run.html"
    exported.write_text(single_file(recording), encoding="utf-8")
    assert exported.stat().st_size < 2_000_000 + 4 / 3 * recording.stat().st_size
    context = chromium.new_context(offline=True)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{exported.as_uri()}#seq=70&block=3")
    expect(page.locator(".you .where")).to_contain_text("event 70 ")
    expect(page.locator("[data-part=detail] h3")).to_contain_text("Block 3")
    page.get_by_role("button", name="follow the newest event").click()
    expect(page.locator(".you .where")).to_contain_text(f"event {len(Trace(recording).events) - 1:,} ")
    for name in ("Timeline", "Events", "Counters", "KV memory"):
        page.get_by_role("button", name=name).click()
    page.wait_for_timeout(500)
    page.get_by_label("kind of event to jump to").select_option("copy-on-write")
    page.get_by_role("button", name="to the one before (P)").click()
    expect(page.locator("[data-part=headline-title]")).to_have_text("Copy-on-write.")
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert complaints == []
    context.close()


def test_damaged_recordings_are_named_as_such(visitor: Visitor, recording: Path, tmp_path: Path) -> None:
    page = visitor.open()
    banner = page.locator("[data-part=banner]")
    header, *events = recording.read_text().splitlines(keepends=True)
    fields = json.loads(header)
    cases = [
        ({"block_size": 10**9}, "the header claims 14 blocks of 1000000000 tokens"),
        ({"num_blocks": 10**9}, "the header claims 1000000000 blocks"),
        ({"base": "picture"}, "the picture in the header, before the first event, is not whole"),
        ({"model": None}, "does not begin with the header of a .kvtrace"),
    ]
    damaged = tmp_path / "damaged.kvtrace"
    for change, words in cases:
        damaged.write_text(json.dumps(fields | change) + "\n" + "".join(events))
        open_file(page, damaged)
        expect(banner).to_contain_text(words)
    allocation = next(i for i, line in enumerate(events) if json.loads(line)["kind"] == "BlockAllocated")
    events[allocation] = json.dumps(json.loads(events[allocation]) | {"block": 999}) + "\n"
    damaged.write_text(header + "".join(events))
    open_file(page, damaged)
    expect(banner).to_contain_text(f"damaged after event {allocation}: there is no block 999")
    cut = tmp_path / "cut.kvtrace.gz"
    cut.write_bytes(gzip.compress(recording.read_bytes())[:-2000])
    open_file(page, cut)
    expect(banner).to_contain_text("the file cannot be read on after event")
    assert page.evaluate("Pagelens.live.viewer.history.growing") is False
    assert not visitor.complaints


def test_only_the_recording_opened_last_is_shown(visitor: Visitor, recording: Path, tmp_path: Path) -> None:
    page = visitor.open()
    header = recording.read_text().splitlines()[0]
    fields = {"kind": "Unheard", "step": 1, "phase": "idle", "t": 0}
    lines = [json.dumps({**fields, "seq": seq}) for seq in range(200_000)]
    long = tmp_path / "long.kvtrace"
    long.write_text("\n".join([header, *lines]) + "\n")
    banner = page.locator("[data-part=banner]")
    open_file(page, long)
    open_file(page, recording)
    expect(banner).to_contain_text(recording.name)
    page.wait_for_timeout(1000)
    assert shown(page) == final_picture(recording)
    open_file(page, long)
    banner.get_by_role("button", name="back to the engine").click()
    page.wait_for_timeout(1000)
    expect(banner).to_be_hidden()
    assert page.evaluate("Pagelens.live.viewer.live")
