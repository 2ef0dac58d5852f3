"""The browser's reducer is Python's on every scenario's recording; and what the player takes out of the stream."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from chromium import Browser, chromium

from pagelens.engine.kvtrace import decode_event
from pagelens.engine.memory_map import MemoryMap
from pagelens.viz.scenario_file import SCENARIOS, read_scenario
from pagelens.viz.scenario_runs import finished_run
from pagelens.viz.scripts import STATIC

__all__ = ["chromium"]
pytestmark = pytest.mark.browser

ALL = [
    (path.stem, variant) for path in sorted(SCENARIOS.glob("*.toml")) for variant in read_scenario(path).variant_names
]
MOST_REQUESTS = 40  # a thousand would be the same again, with pictures too large to compare one by one
FOLD = """([state, events]) => {
    const map = new MemoryMap(state);
    return JSON.stringify(events.map(event => { map.apply(event); return structuredClone({ ...map }); }));
}"""
SPLIT = """async pieces => {
    const notes = [];
    const bytes = new Blob(pieces).stream();
    const rest = await new Response(withoutNotes(bytes, note => notes.push(note))).text();
    return { rest, notes };
}"""
Evaluate = Callable[[str, Any], Any]


@pytest.fixture(scope="module")
def evaluate(chromium: Browser) -> Iterator[Evaluate]:
    page = chromium.new_page()
    for name in ("memory_map", "track"):
        page.add_script_tag(path=str(STATIC / f"{name}.js"))
    yield page.evaluate
    page.close()


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_equal_after_every_event_of_every_scenario(evaluate: Evaluate, name: str, variant: str) -> None:
    scenario = read_scenario(SCENARIOS / f"{name}.toml")
    for arrival in scenario.arrivals:
        arrival.count = min(arrival.count, MOST_REQUESTS)
    header, *lines = finished_run(scenario, variant, "torch").trace().splitlines()
    size = msgspec.json.decode(header)
    picture = MemoryMap(num_blocks=size["num_blocks"], block_size=size["block_size"])
    events = [msgspec.json.decode(line) for line in lines]
    browsers = msgspec.json.decode(evaluate(FOLD, [msgspec.to_builtins(picture), events]))
    for line, browser in zip(lines, browsers, strict=True):
        picture.apply(decode_event(line))
        assert browser == msgspec.json.decode(msgspec.json.encode(picture)), line


def test_notes_are_taken_out_of_the_stream_wherever_it_is_cut(evaluate: Evaluate) -> None:
    text = '{"header":1}\n{"note":"moment","seq":1}\n{"seq":0}\n{"note":"failed","message":"é\\n"}\n{"seq":1}\n{"cut'
    for size in (1, 7, 1000):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        told = evaluate(SPLIT, pieces)
        assert told["rest"] == '{"header":1}\n{"seq":0}\n{"seq":1}\n{"cut'
        assert [note["note"] for note in told["notes"]] == ["moment", "failed"]
