"""The kernel view in a real browser: walks that the interpreter really took, and tracing a running engine."""

import json
import re
from typing import Any

import pytest
from chromium import Browser
from live_site import Site, Visitor
from playwright.sync_api import Locator, Page

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.events import KernelTraced
from pagelens.engine.kernel_trace import TILES
from pagelens.engine.kvtrace import encode_event
from pagelens.engine.runner import Launch
from pagelens.viz.scripts import STATIC, VIEWER_SCRIPTS

pytestmark = pytest.mark.browser

PROMPT = "A hacker is a person who enjoys learning the details of a computer and how to stretch its limits."


def traced_engine(wrong_entry: bool = False) -> Engine:
    """A decode of the embedded model under the interpreter, its second layer traced in tiles of 16 keys."""
    engine = Engine(EngineConfig(kernel="triton", num_gpu_blocks_override=32, block_size=4))
    engine.add_request(PROMPT, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    engine.add_request("The system went down", SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    engine.step()
    prepare = engine.runner.prepare

    def prepare_wrongly(plan: Any) -> Launch:
        launch = prepare(plan)
        launch.batch.metadata.block_tables[0, 2] = 31
        return launch

    if wrong_entry:
        engine.runner.prepare = prepare_wrongly  # type: ignore[method-assign]
    engine.trace_kernel("A.0", layer=1, kv_head=1, tile=16)
    engine.step()
    return engine


def trace_of(engine: Engine) -> KernelTraced:
    (event,) = (event for event in engine.log.read(0) or [] if isinstance(event, KernelTraced))
    return event


@pytest.fixture
def view(chromium: Browser) -> Any:
    """`view(engine)`: a page with nothing but the kernel view of a finished run, and a note of what it highlights."""
    pages: list[Page] = []

    def show(engine: Engine) -> Page:
        page = chromium.new_page()
        pages.append(page)
        page.set_content('<div class="pagelens"><div id="box"></div></div>')
        page.add_style_tag(path=str(STATIC / "pagelens.css"))
        for name in VIEWER_SCRIPTS:
            page.add_script_tag(path=str(STATIC / name))
        header = {"block_size": 4, "num_blocks": 32, "model": engine.log.header.model}
        events = [json.loads(encode_event(event)) for event in engine.log.read(0) or []]
        page.evaluate(
            """([header, events]) => {
                const history = new History(header, { ...MemoryMap.empty(32, 4) });
                for (const event of events) history.append(event);
                window.stub = { header, history, map: history.map, live: false, following: true,
                    selection: new Selection(() => {}, () => {}), lit: [],
                    highlight(blocks) { this.lit = blocks; }, redraw() {} };
                window.kernelView = new KernelView(document.getElementById("box"), window.stub);
                window.kernelView.paint();
            }""",
            [header, events],
        )
        return page

    yield show
    for page in pages:
        page.close()


def lit_on_map(page: Page) -> list[int]:
    blocks: list[int] = page.evaluate("window.stub.lit")
    return blocks


def numbers(cell: Locator) -> list[float]:
    return [float(word) for word in cell.inner_text().replace("−∞", "-inf").replace("×", "").replace("+", "").split()]


@pytest.mark.triton
def test_the_walk_tile_by_tile(view: Any) -> None:
    engine = traced_engine()
    event, table = trace_of(engine), list(engine.manager.tables["A.0"])
    page = view(engine)
    assert page.locator(".origin").inner_text() == "really loaded (interpreter)"
    assert "A.0 · layer 1 of" in page.locator(".kernel-body .facts").inner_text()
    assert set(lit_on_map(page)) == set(table), "at first the whole walk"
    assert "That is what the block table says" in page.locator(".verdict").inner_text()
    cells = page.locator(".kernel-grid .cell")
    assert cells.count() == event.grid[0] * event.grid[1] * event.grid[2]
    assert page.locator(".kernel-grid button.cell").count() == 1

    page.locator(".walk").focus()
    tiles = event.programs[0].tiles
    assert len(tiles) >= 2
    for number, tile in enumerate(tiles):
        page.keyboard.press("ArrowRight")
        assert page.locator(".walk .where").inner_text() == (
            f"tile {number + 1} of {len(tiles)}: keys {tile.first}–{tile.last}"
        )
        expected = table[tile.first // 4 : tile.last // 4 + 1]
        assert lit_on_map(page) == expected
        assert page.locator(".chip.lit").all_inner_texts() == [str(block) for block in expected]
        assert page.locator(".walk .token").count() == tile.last - tile.first + 1
    assert page.get_by_role("button", name="the next tile").is_disabled()
    page.keyboard.press("Home")
    assert page.locator(".walk .where").inner_text().startswith("the whole walk")


@pytest.mark.triton
def test_the_running_softmax_adds_up(view: Any) -> None:
    engine = traced_engine()
    event = trace_of(engine)
    page = view(engine)
    for number, tile in enumerate(event.programs[0].tiles):
        page.get_by_role("button", name="the next tile").click()
        lines = page.locator(".walk table.sheet tr").all()[1:]
        assert len(lines) == event.group
        for head, line in enumerate(lines):
            cells = line.locator("td").all()
            assert cells[0].inner_text() == str(event.kv_head * event.group + head)
            old, factor, added = numbers(cells[3])
            assert numbers(cells[4]) == [pytest.approx(tile.running_sum[head], abs=2e-3)]
            assert old * factor + added == pytest.approx(tile.running_sum[head], abs=2e-2)
            assert numbers(cells[2]) == [factor] and 0 <= factor <= 1 and added > 0
            assert (factor == 0) == (number == 0), "nothing comes before the first tile"


@pytest.mark.triton
def test_the_picker_offers_the_tiles_that_the_engine_takes() -> None:
    offered = re.search(r"TILES_OFFERED = (\[.*\]);", (STATIC / "trace_picker.js").read_text())
    assert offered and json.loads(offered[1]) == [0, *TILES]


def test_a_wrong_block_is_pointed_out(view: Any) -> None:
    page = view(traced_engine(wrong_entry=True))
    assert "31" in page.locator(".verdict.wrong").inner_text()
    assert 31 in lit_on_map(page)


def test_tracing_a_running_engine(site: Site, visitor: Visitor) -> None:
    page = visitor.open()
    site.loop.halt()
    site.loop.submit(PROMPT, SamplingParams(max_tokens=30))
    site.loop.step()
    if page.locator("[data-panel=kernel]").get_attribute("aria-pressed") == "false":
        page.locator("[data-panel=kernel]").click()
    panel = page.locator(".panel.kernel")
    panel.get_by_label("layer").select_option("1")
    panel.get_by_role("button", name="trace the next step").click()
    panel.get_by_text("Waiting for the next step").wait_for()
    page.locator("[data-command=step]").click()
    panel.get_by_text("derived from the block table").wait_for()
    assert "layer 1 of" in panel.locator(".kernel-body .facts").inner_text()
    (sequence,) = (sequence for request in site.loop.engine.requests.values() for sequence in request.sequences)
    table = site.loop.engine.manager.tables[sequence.name]
    assert panel.locator(".kernel-table .chip").all_inner_texts() == [str(block) for block in table]
    panel.get_by_role("button", name="the next tile").click()
    assert set(page.evaluate("Pagelens.live.viewer.highlighted")) <= set(table)
    assert page.evaluate("Pagelens.live.viewer.highlighted.length") == 2, "32 keys lie in two blocks of 16"
    assert visitor.complaints == []
