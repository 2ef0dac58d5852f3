"""The block map in a real Chromium, on a page that holds nothing else: what it paints, and what hands do to it."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chromium import Browser
from fake_engine import random_run
from playwright.sync_api import Page, expect
from scripted import crowded_run, scripted_engine

from pagelens.engine.event_log import EventLog
from pagelens.engine.kvtrace import encode_event
from pagelens.engine.sampling_params import SamplingParams
from pagelens.viz.scripts import STATIC, VIEWER_SCRIPTS

pytestmark = pytest.mark.browser

MARKUP = """<style>{css}</style><body style="margin: 0"><div class="pagelens" style="width: 640px">
<div data-part="map" class="map"><canvas data-part="blocks"></canvas>
<canvas class="overlay" data-part="overlay" tabindex="0" aria-label="block map"></canvas></div>
<ul class="legend" data-part="legend"></ul></div>"""

HARNESS = """
var map, header = {run: "r1", num_host_blocks: 0}, drawn = [], blockMap, theme, selection;
const makeMap = () => {
    const parts = partsOf(document);
    theme = new Theme(document.querySelector(".pagelens"));
    selection = new Selection(() => paint(), () => {}, () => map);
    blockMap = new BlockMap(parts, selection, {header: () => header});
};
const paint = (now = 0) => {
    blockMap.paint(map, holdersOfBlocks(map), theme);
    return blockMap.paintOverlay(map, theme, now);
};
const start = (numBlocks, blockSize, hostBlocks = 0) => {
    map = MemoryMap.empty(numBlocks, blockSize);
    header.num_host_blocks = hostBlocks;
    makeMap();
    paint();
};
const pixels = () => {
    const { canvas } = blockMap.painter;
    return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
};
const place = block => {
    const box = document.querySelector(".overlay").getBoundingClientRect();
    const { x, y, size } = blockMap.place(block);
    return { x: box.x + x + size / 2, y: box.y + y + size / 2 };
};
const plainDraw = drawBlock;
drawBlock = (...args) => { drawn.push(args[4].block); plainDraw(...args); };
"""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 700, "height": 800}, device_scale_factor=1.5)
    page = context.new_page()
    page.set_default_timeout(10_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(error.message))
    page.set_content(MARKUP.format(css=(STATIC / "pagelens.css").read_text()))
    page.add_script_tag(content="\n".join((STATIC / name).read_text() for name in VIEWER_SCRIPTS) + HARNESS)
    yield page
    context.close()
    assert errors == []


def events_of(log: EventLog) -> list[dict[str, Any]]:
    return [json.loads(encode_event(event)) for event in log.read(0) or []]


def forked_run(num_samples: int = 3, steps: int = 3) -> EventLog:
    engine = scripted_engine(num_blocks=24, block_size=4)
    engine.add_request([1] * 10, SamplingParams(max_tokens=20, n=num_samples))
    for _ in range(steps):
        engine.step()
    return engine.log


def show(page: Page, log: EventLog, until: int | None = None, host_blocks: int = 0) -> None:
    """The map after event `until` of a run, by default the newest."""
    page.evaluate("sizes => start(...sizes)", [log.header.num_blocks, log.header.block_size, host_blocks])
    events = events_of(log)[: None if until is None else until + 1]
    page.evaluate("events => { for (const event of events) map.apply(event); paint(); }", events)


def swapped(log: EventLog, kind: str) -> dict[str, Any]:
    """The first event of that kind that moved a block."""
    return next(event for event in events_of(log) if event["kind"] == kind and event["blocks"])


def middle_of(page: Page, block: int) -> tuple[float, float]:
    place = page.evaluate("block => place(block)", block)
    return place["x"], place["y"]


def view(page: Page, what: str) -> Any:
    return page.evaluate(f"blockMap.view.{what}")


# painting


@pytest.mark.parametrize("colouring", ["owner", "references", "age", "read"])
@pytest.mark.parametrize("zoom", ["glyphs", "levels", "pixels"])
def test_painting_what_changed_gives_the_same_picture_as_painting_all(page: Page, colouring: str, zoom: str) -> None:
    log = random_run(random.Random(5), 30).log
    outcome = page.evaluate(
        """([n, size, events, colouring, cell]) => {
            const begin = () => {
                makeMap();
                const { view } = blockMap;
                view.layOut = (blocks, _1, _2, scale) =>
                    MapView.prototype.layOut.call(view, blocks, cell * 6, cell * 4, scale);
                blockMap.colourBy(colouring);
            };
            map = MemoryMap.empty(n, size);
            begin();
            for (const [i, event] of events.entries()) {
                map.apply(event);
                if (i % 3 === 0) paint();
            }
            paint();
            const painted = pixels();
            begin();
            const whole = pixels();
            const used = map.state.filter(state => state === "used").length;
            const different = painted.filter((value, i) => Math.abs(value - whole[i]) > 2).length;
            return { different, total: whole.length, used, pitch: blockMap.view.pitch };
        }""",
        [24, log.header.block_size, events_of(log), colouring, {"glyphs": 48, "levels": 16, "pixels": 5}[zoom]],
    )
    assert outcome["different"] == 0, outcome
    assert outcome["used"] > 0
    assert (outcome["pitch"] >= 30) == (zoom == "glyphs")
    assert (outcome["pitch"] < 8) == (zoom == "pixels")


def test_only_the_blocks_that_changed_are_drawn_again(page: Page) -> None:
    log = forked_run()
    events = events_of(log)
    show(page, log)
    drawn: list[int] = page.evaluate("drawn = [], paint(), drawn")
    assert drawn == []
    name = next(iter(log.snapshot().sequences))
    table = log.snapshot().sequences[name].table
    write = {"kind": "TokensWritten", "seq": len(events), "step": 9, "phase": "launch", "t": 0, "why": ""}
    write |= {"sequences": [name], "starts": [9], "counts": [1]}
    drawn = page.evaluate("event => { drawn = []; map.apply(event); paint(); return drawn; }", write)
    assert drawn
    assert set(drawn) <= {table[-1]}


def test_forty_thousand_blocks_fit(page: Page) -> None:
    figures = page.evaluate(
        """() => {
            start(40000, 16);
            const table = Array.from({length: 36000}, (_, i) => i);
            const view = { sequence: "A", lane: 0, status: "running", num_computed_tokens: 500000, last_step: 1 };
            map.sequences.A = { ...view, table };
            for (const block of table) {
                map.ref_count[block] = 1;
                map.state[block] = "used";
                map.allocated_in[block] = 1;
            }
            paint();
            const { columns, rows, pitch, width, height, zoomed } = blockMap.view;
            return { columns, rows, pitch, width, height, zoomed };
        }"""
    )
    assert figures["columns"] * figures["rows"] >= 40000
    assert figures["columns"] * figures["pitch"] <= figures["width"]
    assert figures["rows"] * figures["pitch"] == pytest.approx(figures["height"])
    assert not figures["zoomed"]


def test_what_cells_show_when_small_is_shown_when_large_and_lanes_beyond_twelve_look_different(page: Page) -> None:
    looks = page.evaluate(
        """() => {
            start(4, 4);
            return Array.from({length: 36}, (_, lane) => JSON.stringify(theme.laneInk(lane)));
        }"""
    )
    assert len(set(looks)) == 36
    assert len({json.loads(look)["colour"] for look in looks}) == 36


# colours


def test_the_colouring_is_chosen_by_keyboard_and_the_legend_follows(page: Page) -> None:
    show(page, forked_run())
    choices = page.get_by_role("group", name="colour blocks by")
    assert choices.get_by_role("button").all_inner_texts() == ["owner", "references", "age", "last read"]
    picture = "() => blockMap.painter.canvas.toDataURL()"
    before = page.evaluate(picture)
    expect(choices.get_by_role("button", name="owner")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".legend")).to_contain_text("shared, in its holders' colours")
    choices.get_by_role("button", name="references").focus()
    page.keyboard.press("Enter")
    expect(choices.get_by_role("button", name="references")).to_have_attribute("aria-pressed", "true")
    expect(choices.get_by_role("button", name="owner")).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".legend li")).to_contain_text(
        ["17 or more", "9–16", "5–8", "3–4", "2", "1 reference", "cached", "blank"]
    )
    assert page.evaluate(picture) != before
    choices.get_by_role("button", name="last read").click()
    expect(page.locator(".legend")).to_contain_text("read in this step")


def test_the_classes_hold_what_the_legend_says(page: Page) -> None:
    page.evaluate("() => start(4, 4)")
    classes: Callable[[str], Any] = page.evaluate
    assert classes("[0, 1, 2, 3, 6, 7, 14, 15, 62, 63, 126, 127, 9999].map(stepClass)") == [
        0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7,
    ]  # fmt: skip
    assert classes("[0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 400].map(referenceClass)") == [None, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_age_and_last_read_tell_old_blocks_from_new_ones(page: Page) -> None:
    show(page, forked_run(num_samples=1, steps=8))
    table = page.evaluate("map.sequences['A.0'].table")
    steps = page.evaluate("table => table.map(b => stepsSince(map, b, holdersOfBlocks(map)))", table)
    assert [entry["read"] for entry in steps] == [0] * len(table)
    assert [entry["allocated"] for entry in steps] == [7, 7, 7, 4, 0]
    assert page.evaluate("stepsSince(map, 23, holdersOfBlocks(map))") == {"allocated": None, "read": None}


# zoom and pan


def test_the_wheel_zooms_about_the_pointer_and_the_minimap_appears(page: Page) -> None:
    page.evaluate("() => start(2000, 16)")
    minimap = page.locator("canvas.minimap")
    expect(minimap).to_be_hidden()
    x, y = middle_of(page, 777)
    page.mouse.move(x, y)
    before = view(page, "pitch")
    page.mouse.wheel(0, -900)
    page.wait_for_function("pitch => blockMap.view.pitch > 2 * pitch", arg=before)
    assert page.evaluate("selection.hovered") == 777
    assert page.evaluate("([x, y]) => { const b = document.querySelector('.overlay').getBoundingClientRect();"
                         "return blockMap.view.blockAt(x - b.x, y - b.y); }", [x, y]) == 777  # fmt: skip
    expect(minimap).to_be_visible()
    page.mouse.dblclick(x, y)
    expect(minimap).to_be_hidden()
    assert view(page, "pitch") == before


def test_at_either_end_of_the_zoom_the_page_scrolls_on(page: Page) -> None:
    page.evaluate("() => { start(2000, 16); document.body.style.height = '3000px'; }")
    page.mouse.move(*middle_of(page, 777))
    page.mouse.wheel(0, 300)
    page.wait_for_function("scrollY > 100")
    assert not view(page, "zoomed")


def test_every_cell_is_found_again_at_its_own_place_at_any_zoom(page: Page) -> None:
    page.evaluate("() => start(1000, 16)")
    wrong = page.evaluate(
        """() => {
            const { view } = blockMap;
            let random = 7, wrong = 0, seen = 0;
            const next = () => (random = (random * 16807) % 2147483647) / 2147483647;
            for (let i = 0; i < 200; i++) {
                view.zoom(next() * view.width, next() * view.height, 0.5 + next() * 1.3);
                view.moveBy(next() * 300 - 150, next() * 300 - 150);
                view.forVisible(block => {
                    const [x, y] = view.corner(block).map(value => value + view.cell / 2);
                    if (x < 0 || y < 0 || x >= view.width || y >= view.height) return;
                    seen++;
                    if (view.blockAt(x, y) !== block) wrong++;
                    const device = view.corner(block)[0] * view.scale;
                    if (Math.abs(device - Math.round(device)) > 1e-6) wrong++;
                });
                if (view.left < 0 || view.top < 0 || view.left + view.width / view.pitch > view.columns + 1e-9) {
                    if (view.columns * view.pitch >= view.width) wrong++;
                }
            }
            return [wrong, seen];
        }"""
    )
    assert wrong[0] == 0
    assert wrong[1] > 1000


def test_a_drag_moves_a_click_pins_and_the_minimap_leads(page: Page) -> None:
    page.evaluate("() => { start(2000, 16); blockMap.gestures.zoom(6); }")
    left, top = view(page, "left"), view(page, "top")
    box = page.locator(".overlay").bounding_box()
    assert box is not None
    x, y = box["x"] + 200, box["y"] + 100
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 80, y - 60, steps=4)
    page.mouse.up()
    assert view(page, "left") == pytest.approx(left + 80 / view(page, "pitch"))
    assert view(page, "top") == pytest.approx(top + 60 / view(page, "pitch"))
    assert page.evaluate("selection.pinned") is None
    page.mouse.click(x, y)
    assert page.evaluate("selection.pinned") == page.evaluate("selection.hovered")
    page.locator("canvas.minimap").click(position={"x": 2, "y": 2})
    assert (view(page, "left"), view(page, "top")) == (0, 0)


def test_two_fingers_zoom_and_move(page: Page) -> None:
    page.evaluate("() => start(2000, 16)")
    before = view(page, "pitch")
    page.evaluate(
        """() => {
            const overlay = document.querySelector(".overlay");
            overlay.setPointerCapture = () => {};
            const { x, y } = overlay.getBoundingClientRect();
            const send = (type, id, dx) => overlay.dispatchEvent(new PointerEvent(type,
                { pointerId: id, clientX: x + 300 + dx, clientY: y + 100, bubbles: true }));
            send("pointerdown", 1, -20);
            send("pointerdown", 2, 20);
            send("pointermove", 1, -60);
            send("pointermove", 2, 60);
            send("pointerup", 1, -60);
            send("pointerup", 2, 60);
        }"""
    )
    assert view(page, "pitch") == pytest.approx(3 * before, rel=0.1)


def test_keys_zoom_walk_and_show_all(page: Page) -> None:
    page.evaluate("() => start(2000, 16)")
    page.get_by_label("block map").focus()
    page.keyboard.press("ArrowRight")
    for _ in range(5):
        page.keyboard.press("+")
    assert view(page, "zoomed")
    page.keyboard.press("End")
    assert page.evaluate("selection.block") == 1999
    assert page.evaluate("blockMap.view.isVisible(1999)")
    page.keyboard.press("0")
    assert not view(page, "zoomed")
    page.get_by_role("button", name="zoom in").click()
    assert view(page, "zoomed")


# what moves


NOTE = """event => {
    blockMap.forget();
    blockMap.note(event, 0);
    return { moving: paint(100), moves: blockMap.motion.moves.map(move => [move.from, move.to]) };
}"""


def test_a_swap_travels_to_the_host_lane_and_back(page: Page) -> None:
    log = crowded_run(host_blocks=30).log
    out, back = swapped(log, "BlocksSwappedOut"), swapped(log, "BlocksSwappedIn")
    show(page, log, out["seq"], host_blocks=30)
    noted = page.evaluate(NOTE, out)
    assert noted["moving"]
    assert noted["moves"] == [[b, -1 - h] for b, h in zip(out["blocks"], out["host_blocks"], strict=True)]
    host_block = out["host_blocks"][0]
    assert page.evaluate("h => holdersOfBlocks(map).host.has(h)", host_block)
    assert page.evaluate("h => blockMap.place(-1 - h).y > blockMap.view.height", host_block)
    page.mouse.move(*middle_of(page, -1 - host_block))
    told = f"host block {host_block}: logical {out['indices'][0]} of {out['sequence']}, swapped out"
    expect(page.locator(".overlay")).to_have_attribute("title", told)

    show(page, log, back["seq"], host_blocks=30)
    noted = page.evaluate(NOTE, back)
    assert noted["moves"] == [[-1 - h, b] for b, h in zip(back["blocks"], back["host_blocks"], strict=True)]
    assert page.evaluate("paint(5000)") is False


def test_where_motion_is_unwelcome_nothing_flashes_and_a_swap_is_an_arrow(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.evaluate("() => start(8, 4, 4)")
    page.evaluate(
        """() => {
            blockMap.note({ kind: "BlockReleased", block: 1, sequence: "A", step: 0 }, 0);
            blockMap.note({ kind: "BlocksSwappedOut", blocks: [2], host_blocks: [0], sequence: "A", step: 0 }, 0);
            arrows = 0;
            const plain = drawArrow;
            drawArrow = (...args) => { arrows++; plain(...args); };
            paint(100);
        }"""
    )
    assert page.evaluate("blockMap.motion.flashes.size") == 0
    assert page.evaluate("arrows") == 1


def test_a_release_dims_from_its_owners_colour_and_an_eviction_is_seen_before_the_allocation(page: Page) -> None:
    show(page, forked_run())
    seen = page.evaluate(
        """() => {
            const { motion } = blockMap;
            blockMap.note({ kind: "BlockReleased", block: 20, sequence: "A.0", step: 1 }, 0);
            blockMap.note({ kind: "BlockEvicted", block: 21, step: 1 }, 0);
            blockMap.note({ kind: "BlockAllocated", block: 21, sequence: "A.0", step: 1 }, 1);
            paint(10);
            const { x, y, size } = blockMap.place(20);
            const at = [(x + size / 2) * 1.5, (y + size / 2) * 1.5];
            const colour = [...blockMap.overlay.getContext("2d").getImageData(...at, 1, 1).data.slice(0, 3)];
            return { colour, owner: theme.rgb(theme.laneColour(0)), evicted: motion.flashes.get(21).kind };
        }"""
    )
    assert seen["colour"] == pytest.approx(seen["owner"], abs=3)
    assert seen["evicted"] == "evicted"


# to carry away, and without eyes


def test_the_table_says_what_the_map_shows_a_page_at_a_time(page: Page) -> None:
    log = crowded_run(host_blocks=30).log
    out = swapped(log, "BlocksSwappedOut")
    show(page, log, out["seq"], host_blocks=30)
    rows = page.locator(".block-sheet tbody tr")
    expect(rows).to_have_count(0)
    page.get_by_role("button", name="the blocks as a table").click()
    expect(rows).to_have_count(log.header.num_blocks + 30)
    picture = log.snapshot(out["seq"])
    for block in range(log.header.num_blocks):
        cells = rows.nth(block).locator("th, td").all_text_contents()
        holders = ", ".join(f"{name} (logical {index})" for name, index in picture.holders(block))
        assert cells[:4] == [str(block), picture.state[block], str(picture.ref_count[block]), holders or "none"]
    host_row = rows.nth(log.header.num_blocks + out["host_blocks"][0])
    expect(host_row).to_contain_text(f"h{out['host_blocks'][0]}")
    expect(host_row).to_contain_text(f"{out['sequence']} (logical {out['indices'][0]})")


def test_the_table_of_a_large_pool_shows_two_hundred_rows_and_rests_while_closed(page: Page) -> None:
    page.evaluate("() => start(450, 4)")
    toggle = page.get_by_role("button", name="the blocks as a table")
    toggle.click()
    rows = page.locator(".block-sheet tbody tr")
    expect(rows).to_have_count(200)
    expect(page.locator(".block-sheet")).to_contain_text("rows 1 to 200 of 450")
    page.get_by_role("button", name="next blocks").click()
    page.get_by_role("button", name="next blocks").click()
    expect(rows).to_have_count(50)
    expect(rows.last.locator("th")).to_have_text("449")
    expect(page.get_by_role("button", name="next blocks")).to_be_disabled()
    toggle.click()
    page.evaluate("map.state[449] = 'cached'; paint()")
    assert rows.last.locator("td").first.text_content() == "blank"
    toggle.click()
    expect(rows.last.locator("td").first).to_have_text("cached")


def test_the_picture_holds_the_whole_map_however_far_one_has_zoomed(page: Page) -> None:
    show(page, forked_run())
    page.evaluate("blockMap.gestures.zoom(3)")
    picture = page.evaluate(
        """async () => {
            const words = [];
            const { fillText } = CanvasRenderingContext2D.prototype;
            CanvasRenderingContext2D.prototype.fillText = function (...args) {
                words.push(String(args[0]));
                fillText.apply(this, args);
            };
            drawn = [];
            const blob = await blockMap.toPNG();
            const image = await createImageBitmap(blob);
            return { type: blob.type, width: image.width, height: image.height, words, drawn };
        }"""
    )
    assert picture["type"] == "image/png"
    assert picture["width"] > 1000
    assert {*range(24)} <= {block for block in picture["drawn"] if block != ""}
    assert any(word.startswith("run r1 · step 2") and word.endswith("coloured by owner") for word in picture["words"])
    assert "shared, in its holders' colours" in picture["words"]


def test_the_slot_of_a_token_is_outlined(page: Page) -> None:
    show(page, forked_run())
    before = page.evaluate("[...blockMap.overlay.getContext('2d').getImageData(0, 0, 900, 400).data].some(v => v > 0)")
    assert not before
    page.evaluate("selection.hoverToken('A.0', 1)")
    page.evaluate("paint()")
    lit = page.evaluate(
        """() => {
            const { block, slot } = selection.slot;
            const { x, y, size } = blockMap.place(block);
            const [left, top, width] = slotPlace(x, y, size, slot, 4);
            const at = [(left + width / 2) * 1.5, (top - 1) * 1.5];
            return [slot, blockMap.overlay.getContext("2d").getImageData(...at, 1, 1).data[3]];
        }"""
    )
    assert lit[0] == 1
    assert lit[1] > 100
