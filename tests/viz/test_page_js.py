"""The page's own logic beside the reducer: sentences, the choice of the headline, what a block holds."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chromium import Browser
from fake_engine import emit_trace, random_run
from scripted import crowded_run, scripted_engine

from pagelens.engine import events as ev
from pagelens.engine.event_log import EventLog, LogHeader
from pagelens.engine.kvtrace import encode_event
from pagelens.engine.sampling_params import SamplingParams
from pagelens.viz.scripts import STATIC

pytestmark = pytest.mark.browser

Evaluate = Callable[..., Any]
SCRIPTS = "memory_map block_view contiguous run_tally step_log history live_source sentences headline"
SCRIPTS += " status_words"


@pytest.fixture(scope="module")
def evaluate(chromium: Browser) -> Iterator[Evaluate]:
    page = chromium.new_page()
    for name in SCRIPTS.split():
        page.add_script_tag(path=str(STATIC / f"{name}.js"))
    yield page.evaluate
    page.close()


def events_of(log: EventLog) -> list[dict[str, Any]]:
    return [json.loads(encode_event(event)) for event in log.read(0) or []]


def history(num_blocks: int, block_size: int, run: str = "r") -> str:
    """JS for a history that is empty as yet. Like a viewer it has `map` and `event(seq)`, all that a sentence asks."""
    header = f"{{run: '{run}', num_blocks: {num_blocks}, block_size: {block_size}, config: {{}}, model: {{}}}}"
    return f"new History({header}, {{...MemoryMap.empty({num_blocks}, {block_size})}})"


def test_every_kind_of_event_has_a_sentence_without_holes(evaluate: Evaluate) -> None:
    told: dict[str, str] = {}
    runs = [random_run(random.Random(seed), 14) for seed in (94, 148)]
    for log in [run.log for run in runs] + [crowded_run(host_blocks=30).log]:
        log.emit(ev.EngineHalted, "user_halt", after=ev.Phase.COMMIT)
        log.emit(ev.EngineContinued, "user_run")
        emit_trace(log)
        tell = f"""events => {{
            const history = {history(log.header.num_blocks, log.header.block_size)};
            const told = {{}};
            for (const event of events) {{
                history.append(event);
                const {{ title, text }} = sentenceOf(event, history);
                told[event.kind] = `${{title}}. ${{text}} ${{reasonOf(event, history)}} ${{inShort(event)}}`;
            }}
            return told;
        }}"""
        told |= evaluate(tell, events_of(log))
    assert set(told) == set(ev.EVENT_TYPES)
    for kind, sentence in told.items():
        assert not any(hole in sentence for hole in ("undefined", "null", "NaN", "[object")), f"{kind}: {sentence}"
        assert not any(name in sentence for name in ev.EVENT_TYPES), f"a class name: {sentence}"


def test_between_steps_the_place_is_after_the_step_that_is_over(evaluate: Evaluate) -> None:
    tell = (
        "moments => moments.map(([after, step, phase]) => [stepPlace({step, phase}), haltPlace(after, {step, phase})])"
    )
    moments = [["commit", 0, "idle"], ["commit", 6, "idle"], ["plan", 6, "plan"], ["launch", 6, "launch"]]
    assert evaluate(tell, moments) == [
        ["before step 0", "before step 0"],
        ["after step 5", "after step 5"],
        ["step 6", "after plan of step 6"],
        ["step 6", "after launch of step 6"],
    ]


def test_who_waits_for_blocks_says_how_many_and_what_must_stay_free(evaluate: Evaluate) -> None:
    cases = [[1, 1, 1, 0], [2, 3, 0, 2], [4, 2, 1, 1], [4, 2, 0, 0]]
    tell = (
        "cases => cases.map(([needs, free, watermark, promised]) => blocksWanted({needs, free, watermark, promised}))"
    )
    assert evaluate(tell, cases) == [
        "needs 1 block; 1 is free, but 1 must stay free (watermark)",
        "needs 2 blocks; 3 are free, but 2 are promised to others",
        "needs 4 blocks; 2 are free, and 1 must stay free (watermark) and 1 is promised to others",
        "needs 4 blocks; 2 are free",
    ]


def test_the_headline_is_the_most_telling_event_of_the_newest_step(evaluate: Evaluate) -> None:
    engine = scripted_engine(num_blocks=16, block_size=4)
    engine.add_request([1] * 6, SamplingParams(max_tokens=8, n=3))
    engine.step()
    engine.step()
    told = evaluate(
        f"""events => {{
            const history = {history(16, 4)};
            const headline = new Headline();
            for (const event of events) {{
                history.append(event);
                headline.note(event, history);
            }}
            return headline.current(0, true);
        }}""",
        events_of(engine.log),
    )
    assert told["kind"] == "BlockCopied"
    assert told["alike"] == 1
    assert told["text"].startswith("A.0 writes position 6 into block 1, which A.1 and A.2 still read.")
    assert "shared block ← A.0 computes 1 token from position 6 on" in told["why"]


def test_a_headline_stays_long_enough_to_be_read(evaluate: Evaluate) -> None:
    shown = evaluate(
        """() => {
            const headline = new Headline();
            const say = (rank, title) => { headline.best = { rank, title, text: "", why: "", alike: 0 }; };
            const seen = [];
            say(66, "finished"); seen.push(headline.current(0, false).title);
            say(20, "plan"); seen.push(headline.current(1000, false).title);
            say(90, "copy"); seen.push(headline.current(1100, false).title);
            say(20, "plan"); seen.push(headline.current(3700, false).title);
            say(66, "finished"); seen.push(headline.current(3701, true).title);
            return seen;
        }"""
    )
    assert shown == ["finished", "finished", "copy", "plan", "finished"]


def test_a_view_skips_what_it_has_and_what_belongs_to_another_run(evaluate: Evaluate) -> None:
    log = random_run(random.Random(94), 14).log
    got = evaluate(
        f"""events => {{
            let resyncs = 0;
            globalThis.connectToStream = () => ({{ resync: () => resyncs++ }});
            globalThis.console.warn = () => {{}};
            const source = new LiveSource("0");
            const {{ header, chunks: [{{ base }}] }} = {history(log.header.num_blocks, log.header.block_size)};
            const loop = {{ steps_per_second: null, failure: null }};
            source.receive({{ type: "snapshot", header, base, events: [], loop }});
            const seqs = [];
            const receive = (run, some) => {{
                source.receive({{ type: "events", run, events: some }});
                seqs.push([source.history.newest, resyncs]);
            }};
            receive("r", events.slice(0, 20));
            receive("r", events.slice(10, 30));
            receive("other", events.slice(30, 40));
            receive("r", events.slice(35));
            receive("r", events.slice(30));
            return [seqs, source.history.event(25).seq, source.history.event(-1) ?? null];
        }}""",
        events_of(log),
    )
    assert got == [[[19, 0], [29, 0], [29, 0], [29, 1], [29, 1]], 25, None]


def test_a_block_tells_its_fill_and_its_tokens(evaluate: Evaluate) -> None:
    log = EventLog(LogHeader(num_blocks=4, block_size=4))
    texts = list("abcdef")
    log.emit(
        ev.RequestArrived, "", request="A", sequence="A.0", prompt_token_ids=[1, 2, 3, 4, 5, 6], prompt_texts=texts
    )
    log.emit(ev.SequenceAdmitted, "", sequence="A.0", num_computed_tokens=5)
    log.emit(ev.SequenceScheduled, "", sequence="A.0", start=5, num_tokens=1)
    for index, block in enumerate((3, 2)):
        log.emit(ev.BlockAllocated, "", sequence="A.0", block=block, index=index, ref_count=1, state=ev.BlockState.USED)
    block = evaluate(
        """events => {
            const map = MemoryMap.empty(4, 4);
            for (const event of events) map.apply(event);
            const { filled, planned, sealed, ...described } = describeBlock(map, 2, holdersOfBlocks(map));
            const texts = textsInBlock(map, { filled, planned, ...described });
            return { filled, planned, sealed, texts, counts: countStates(map) };
        }""",
        events_of(log),
    )
    assert block == {
        "filled": 1,
        "planned": 1,
        "sealed": False,
        "texts": ["e", "f"],
        "counts": {"used": 2, "cached": 0, "blank": 2},
    }
