"""What led to a block, where a token lies, and which events a filter lets through, on logs of the engine."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chromium import Browser
from scripted import crowded_run, scripted_engine

from pagelens.engine import SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.event_log import EventLog
from pagelens.engine.events import Event
from pagelens.engine.kvtrace import encode_event
from pagelens.viz.scripts import STATIC

pytestmark = pytest.mark.browser

Evaluate = Callable[..., Any]
SCRIPTS = "elements memory_map block_view contiguous run_tally step_log history selection sentences address causes"
SCRIPTS += " event_matches"

VIEWER = """
    const history = new History(header, {...MemoryMap.empty(header.num_blocks, header.block_size)});
    for (const event of events) history.append(event);
    const viewer = {
        history, header,
        goTo(seq) { this.map = history.pictureAt(seq); this.holders = holdersOfBlocks(this.map); },
    };
    viewer.selection = new Selection(() => {}, () => {}, () => viewer.map);
    viewer.goTo(history.newest);
"""


@pytest.fixture(scope="module")
def evaluate(chromium: Browser) -> Iterator[Evaluate]:
    page = chromium.new_page()
    for name in SCRIPTS.split():
        page.add_script_tag(path=str(STATIC / f"{name}.js"))

    def run(log: EventLog, body: str, argument: Any = None) -> Any:
        header = {"num_blocks": log.header.num_blocks, "block_size": log.header.block_size, "config": {}, "model": {}}
        events = [json.loads(encode_event(event)) for event in log.read(0) or []]
        return page.evaluate(f"([header, events, argument]) => {{ {VIEWER} {body} }}", [header, events, argument])

    yield run
    page.close()


def of_kind(log: EventLog, kind: type[Event]) -> list[Any]:
    return [event for event in log.read(0) or [] if isinstance(event, kind)]


def three_samples(steps: int = 4) -> EventLog:
    engine = scripted_engine(num_blocks=16, block_size=4)
    engine.add_request([1] * 6, SamplingParams(max_tokens=8, n=3))
    for _ in range(steps):
        engine.step()
    return engine.log


def test_a_copied_block_leads_back_to_the_request(evaluate: Evaluate) -> None:
    log = three_samples()
    copy = of_kind(log, ev.BlockCopied)[-1]
    links = evaluate(log, "return causesOf(originOf(argument, viewer.map, history), history)", copy.destination)
    words = [link["words"] for link in links]
    assert words[0] == f"block {copy.source} was copied to {copy.destination} for {copy.sequence}"
    assert words[1] == f"{copy.sequence} computes 1 token from position 6 on (step 1)"
    assert f"{copy.sequence} was forked from A.0" in words
    assert words[-1] == "A arrived"
    causes = {event.seq: event.cause for event in log.read(0) or []}
    for link, after in itertools.pairwise(links):
        assert after["seq"] == causes[link["seq"]]


def test_steps_in_a_row_are_one_link_that_leads_to_the_first_of_them(evaluate: Evaluate) -> None:
    log = three_samples(steps=7)
    last = of_kind(log, ev.SequenceScheduled)[-1]
    links = evaluate(log, "return causesOf(history.event(argument), history)", last.seq)
    own = [event for event in of_kind(log, ev.SequenceScheduled) if event.sequence == last.sequence]
    assert links[1] == {"seq": own[0].seq, "words": f"{len(own) - 1} earlier steps of {last.sequence}"}


def test_a_chain_whose_beginning_is_not_held_says_so(evaluate: Evaluate) -> None:
    log = three_samples()
    scheduled = of_kind(log, ev.SequenceScheduled)[-1]
    links = evaluate(
        log,
        "return causesOf(history.event(argument), { event: seq => seq < argument ? undefined : history.event(seq) })",
        scheduled.seq,
    )
    assert links[-1] == {"seq": scheduled.cause, "words": f"event {scheduled.cause}, which is not held here"}


def test_at_a_copy_its_source_says_who_is_about_to_let_go_and_both_blocks_know_of_the_copy(evaluate: Evaluate) -> None:
    log = three_samples()
    copy, *_ = of_kind(log, ev.BlockCopied)
    release = next(event for event in of_kind(log, ev.BlockReleased) if event.seq > copy.seq)
    assert (release.block, release.sequence) == (copy.source, copy.sequence)
    body = """
        return [argument.seq - 1, argument.seq, argument.seq + 1].map(seq => {
            viewer.goTo(seq);
            const { map, holders } = viewer;
            const described = describeBlock(map, argument.source, holders);
            const releases = comingReleases(argument.source, described, map, history).map(event => event.seq);
            const last = block => lastChangeOf(block, map, history).seq;
            const { refs, entries } = described;
            return [refs, entries.length, releases, last(argument.source), last(argument.destination)];
        });
    """
    before, at, after = evaluate(log, body, json.loads(encode_event(copy)))
    assert before[:3] == at[:3] == [3, 2, [release.seq]]
    assert before[3] < copy.seq and before[4] == copy.seq - 1, "the destination was allocated"
    assert at[3:] == [copy.seq, copy.seq]
    assert after == [2, 2, [], release.seq, copy.seq]


def test_every_holder_of_a_shared_block_has_its_own_reason(evaluate: Evaluate) -> None:
    log = crowded_run(host_blocks=0).log
    body = """
        return argument.map(seq => {
            viewer.goTo(seq);
            const { map, holders } = viewer;
            return Array.from({ length: map.num_blocks }, (_, block) => block)
                .filter(block => map.state[block] === "used").map(block => {
                    const { entries } = describeBlock(map, block, holders);
                    const taken = takenBy(block, entries, originOf(block, map, history), map, history);
                    return [block, entries.map(({ view }) => view.sequence).sort(), taken];
                });
        });
    """
    moments = [event.seq for event in of_kind(log, ev.StepCommitted)]
    shared = 0
    for seq, blocks in zip(moments, evaluate(log, body, moments), strict=True):
        newest = {
            (event.block, event.sequence): event.seq
            for event in log.read(0) or []
            if isinstance(event, ev.BlockAllocated | ev.BlockShared) and event.seq <= seq
        }
        for block, names, taken in blocks:
            assert sorted(name for name, _ in taken) == names
            shared += len(names) > 1
            for name, event in taken:
                is_copy = event["kind"] == "BlockCopied" and event["destination"] == block
                assert event["sequence"] == name
                assert event["seq"] - is_copy == newest[block, name]
    assert shared > 10


ADDRESS = """
    viewer.goTo(argument.seq);
    viewer.selection.pinToken(argument.sequence, argument.position);
    const address = new Address(viewer);
    address.paint();
    return { slot: viewer.selection.slot, text: address.box.textContent, hidden: address.box.hidden };
"""


def test_a_token_that_is_written_has_a_slot_and_one_to_come_has_none_yet(evaluate: Evaluate) -> None:
    log = three_samples()
    view = log.snapshot().sequences["A.1"]
    at = {"seq": log.next_seq - 1, "sequence": "A.1"}
    shown = evaluate(log, ADDRESS, at | {"position": 5})
    assert shown["slot"] == {"block": view.table[1], "slot": 1}
    assert "logical block = 5 // 4 = 1, slot = 5 % 4 = 1" in shown["text"]
    assert f"table[1] = block {view.table[1]}: its key and value lie there." in shown["text"]
    assert "no tensor" in shown["text"]
    beyond = evaluate(log, ADDRESS, at | {"position": len(view.table) * 4})
    assert beyond["slot"] is None
    assert f"has no entry {len(view.table)} yet" in beyond["text"]


def test_a_swapped_out_token_lies_in_a_host_block(evaluate: Evaluate) -> None:
    log = crowded_run(host_blocks=30).log
    swapped = next(event for event in of_kind(log, ev.BlocksSwappedOut) if event.indices)
    argument = {"seq": swapped.seq, "sequence": swapped.sequence, "position": swapped.indices[0] * 4}
    shown = evaluate(log, ADDRESS, argument)
    assert shown["slot"] is None
    assert f"table[{swapped.indices[0]}] = block {swapped.host_blocks[0]} of the host pool" in shown["text"]


def test_a_finished_sequence_tells_where_its_token_lay_and_whose_the_block_is_now(evaluate: Evaluate) -> None:
    log = crowded_run(host_blocks=0).log
    finished = of_kind(log, ev.SequenceFinished)[0]
    freed = next(e for e in of_kind(log, ev.BlockReleased) if e.cause == finished.seq and e.index == 1)
    shown = evaluate(log, ADDRESS, {"seq": freed.seq + 1, "sequence": finished.sequence, "position": 6})
    assert f"{finished.sequence} has finished" in shown["text"]
    assert f"lay in block {freed.block}, slot 2, which" in shown["text"]
    preempted = of_kind(log, ev.RequestPreempted)[0]
    lost = [e for e in of_kind(log, ev.BlockReleased) if e.cause == preempted.seq][-1]
    argument = {"seq": lost.seq, "sequence": lost.sequence, "position": lost.index * 4}
    assert f"{lost.sequence} was preempted" in evaluate(log, ADDRESS, argument)["text"]


MATCHES = """
    const kinds = argument.kinds ? new Set(argument.kinds) : null;
    const { subject = null, words = [] } = argument;
    const matches = new EventMatches(history, { kinds, subject, words });
    while (matches.progress < 1) matches.update(5);
    return Array.from({ length: matches.length }, (_, i) => matches.at(i));
"""


def test_events_are_found_by_kind_subject_and_words(evaluate: Evaluate) -> None:
    log = crowded_run(host_blocks=0).log
    events = log.read(0) or []
    assert evaluate(log, MATCHES, {}) == list(range(log.next_seq))
    copies = [event.seq for event in of_kind(log, ev.BlockCopied)]
    kinds = ["BlockCopied", "BlockEvicted"]
    expected = [event.seq for event in events if type(event).__name__ in kinds]
    assert evaluate(log, MATCHES, {"kinds": kinds}) == expected
    block = of_kind(log, ev.BlockCopied)[0].source
    about = evaluate(log, MATCHES, {"subject": {"block": block}})
    assert copies[0] in about
    for event in events:
        named = [getattr(event, name, None) for name in ("block", "source", "destination")]
        assert (event.seq in about) == (block in named)
    name = of_kind(log, ev.SequenceForked)[0].child
    request = name.partition(".")[0]
    of_child = evaluate(log, MATCHES, {"subject": {"sequence": name, "request": request}, "kinds": ["BlockReleased"]})
    assert of_child == [event.seq for event in of_kind(log, ev.BlockReleased) if event.sequence == name]
    assert evaluate(log, MATCHES, {"words": ["copy-on-write", name.lower()]}) == [
        event.seq for event in of_kind(log, ev.BlockCopied) if name in event.sequence
    ]


def test_matches_follow_a_history_that_grows_and_loses_its_beginning(evaluate: Evaluate) -> None:
    log = crowded_run(host_blocks=0).log
    got = evaluate(
        log,
        """
        const half = Math.floor(events.length / 2);
        const live = new History(header, {...MemoryMap.empty(header.num_blocks, header.block_size)}, { live: true });
        for (const event of events.slice(0, half)) live.append(event);
        const matches = new EventMatches(live, { kinds: new Set(["BlockAllocated"]), subject: null, words: [] });
        matches.update(1000);
        for (const event of events.slice(half)) live.append(event);
        matches.update(1000);
        const all = [...matches.seqs];
        Object.defineProperty(live, "oldest", { value: half });
        matches.update(1000);
        return [all, matches.seqs];
        """,
    )
    allocated = [event.seq for event in of_kind(log, ev.BlockAllocated)]
    assert got == [allocated, [seq for seq in allocated if seq >= log.next_seq // 2]]
