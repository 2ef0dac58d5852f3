"""What the timeline, the counters and the memory bars draw: equal to what the engine's own measures say."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from chromium import Browser
from fake_engine import random_run
from scripted import crowded_run, scripted_engine

from pagelens.engine import SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.contiguous import ContiguousMemory, maximum, power_of_two, true_length
from pagelens.engine.event_log import EventLog
from pagelens.engine.kvtrace import encode_event
from pagelens.engine.memory_map import MemoryMap
from pagelens.engine.run_stats import RunStats
from pagelens.engine.waste import WasteMeter
from pagelens.viz.scripts import STATIC

pytestmark = pytest.mark.browser

Evaluate = Callable[..., Any]
SCRIPTS = "elements memory_map block_view contiguous run_tally step_log history panels memory_bars counter_series"
WORK = {"prefill": "prefill", "prefill_chunk": "prefill", "recompute": "recompute", "next_token": "decode"}


@pytest.fixture(scope="module")
def evaluate(chromium: Browser) -> Iterator[Evaluate]:
    page = chromium.new_page()
    for name in SCRIPTS.split():
        page.add_script_tag(path=str(STATIC / f"{name}.js"))
    yield page.evaluate
    page.close()


def shared_prompt_run() -> EventLog:
    """Requests with one prompt, the later ones hitting the cache, one with three samples."""
    engine = scripted_engine(40, 4, max_num_batched_tokens=12, max_model_len=96)
    for number in range(5):
        engine.add_request([7] * 21, SamplingParams(max_tokens=9 + number, n=3 if number == 2 else 1))
        engine.step()
        engine.step()
    while engine.has_work:
        engine.step()
    return engine.log


LOGS = {
    "shared prompts": shared_prompt_run,
    "recompute": lambda: crowded_run(host_blocks=0).log,
    "swap": lambda: crowded_run(host_blocks=30).log,
}


@pytest.fixture(scope="module", params=LOGS)
def log(request: pytest.FixtureRequest) -> EventLog:
    return LOGS[request.param]()


def events_of(log: EventLog) -> list[dict[str, Any]]:
    return [json.loads(encode_event(event)) for event in log.read(0) or []]


def header_of(log: EventLog) -> dict[str, Any]:
    return {"run": "r", "config": {"max_model_len": log.header.config["max_model_len"]}}


def pictures(log: EventLog) -> Iterator[tuple[Any, MemoryMap]]:
    picture = MemoryMap(num_blocks=log.header.num_blocks, block_size=log.header.block_size)
    for event in log.read(0) or []:
        picture.apply(event)
        yield event, picture


HISTORY = """
    const build = (header, base, events) => {
        const history = new History(header, base);
        for (const event of events) history.append(event);
        return history;
    };
    const empty = (blocks, size) => ({...MemoryMap.empty(blocks, size)});
    const log = history => ({
        steps: history.steps.steps.map(({ flow, ...step }) => step),
        rows: history.steps.inOrder().map(({ spans, ...row }) =>
            ({ ...row, spans: spans.map(span => ({ ...span, to: `${span.to}` })) })),
    });
"""


def test_the_paged_slots_are_those_of_the_waste_meter(evaluate: Evaluate, log: EventLog) -> None:
    header = log.header
    meter = WasteMeter(MemoryMap(num_blocks=header.num_blocks, block_size=header.block_size))
    counts = []
    for event, picture in pictures(log):
        meter.apply(event, picture)
        if isinstance(event, ev.TokensWritten):
            states = [picture.count(ev.BlockState.USED), picture.count(ev.BlockState.CACHED)]
            running = sum(view.status == "running" for view in picture.sequences.values())
            counts.append([event.step, *states, running])
    expected = [
        [*count, step.split.tokens, step.split.tokens, step.split.allocated]
        for count, step in zip(counts, meter.steps(), strict=True)
    ]
    found = evaluate(
        f"""([events, header, blocks, size]) => {{ {HISTORY}
            const history = build(header, empty(blocks, size), []);
            const found = [];
            for (const event of events) {{
                history.append(event);
                if (event.kind !== "TokensWritten") continue;
                const {{ step, memory }} = history.steps.steps.at(-1);
                const {{ tokens, allocated }} = pagedSplit(history.map);
                found.push([step, memory.used, memory.cached, memory.running, memory.held, tokens, allocated]);
            }}
            return found;
        }}""",
        [events_of(log), header_of(log), header.num_blocks, header.block_size],
    )
    assert found == expected
    assert len(found) > 10


def test_what_contiguous_memory_would_hold(evaluate: Evaluate, log: EventLog) -> None:
    longest = log.header.config["max_model_len"]
    num_slots = log.header.num_blocks * log.header.block_size
    reservations = {"maximum": maximum(longest), "power of two": power_of_two(longest), "true length": true_length()}
    expected = []
    for event, picture in pictures(log):
        if event.seq % 5:
            continue
        running = [view for view in picture.sequences.values() if view.status == "running"]
        for name, reserve in reservations.items():
            memory, fit, tokens = ContiguousMemory(num_slots), 0, 0
            for view in running:
                num_output = min(view.max_tokens, longest - view.num_prompt_tokens)
                if memory.allocate(reserve(view.num_prompt_tokens, num_output)) is None:
                    break
                fit, tokens = fit + 1, tokens + view.num_computed_tokens
            expected.append([event.seq, name, fit, tokens, num_slots - memory.num_free])
    found = evaluate(
        f"""([events, header, blocks, size]) => {{ {HISTORY}
            const history = build(header, empty(blocks, size), []);
            return events.flatMap(event => {{
                history.append(event);
                if (event.seq % 5) return [];
                return Object.entries(RESERVATIONS).map(([name, reserve]) => {{
                    const split = contiguousSplit(runningViews(history.map), reserve,
                        longestSequence(header, history.map), blocks * size);
                    return [event.seq, name, split.fit, split.tokens, split.reserved];
                }});
            }});
        }}""",
        [events_of(log), header_of(log), log.header.num_blocks, log.header.block_size],
    )
    assert found == expected
    assert max(fit for _, _, fit, _, _ in found) > 1


@pytest.mark.parametrize("num_prompt", [1, 7, 30])
def test_reservations_for_every_length(evaluate: Evaluate, num_prompt: int) -> None:
    outputs = list(range(1, 66))
    reservations = (maximum(64), power_of_two(64), true_length())
    found = evaluate(
        "([prompt, outputs]) => Object.values(RESERVATIONS).map(reserve => outputs.map(n => reserve(prompt, n, 64)))",
        [num_prompt, outputs],
    )
    assert found == [[reserve(num_prompt, n) for n in outputs] for reserve in reservations]


def test_rates_and_times_are_those_of_the_run_statistics(evaluate: Evaluate, log: EventLog) -> None:
    stats = RunStats(log.header)
    generated = 0
    for event, picture in pictures(log):
        stats.apply(event, picture)
        generated += len(event.sequences) if isinstance(event, ev.TokensGenerated) else 0
    found = evaluate(
        f"""([events, header, blocks, size]) => {{ {HISTORY}
            const history = build(header, empty(blocks, size), events);
            const total = name => history.steps.steps.reduce((sum, step) => sum + step.flow[name], 0);
            const {{ series }} = counterSeries(history.steps, history.map, 20);
            return [total("generated"), total("firsts"), total("firstNs"), total("gaps"), series.hits.at(-1) ?? 0,
                series.used.length];
        }}""",
        [events_of(log), header_of(log), log.header.num_blocks, log.header.block_size],
    )
    first = stats.first_token_ns
    assert found[:4] == [generated, len(first), sum(first.values()), stats.gaps.total()]
    assert found[4] == pytest.approx(100 * stats.hit_rate)
    assert found[5] <= 20


def test_the_time_to_a_token_leaves_out_what_the_engine_was_halted_for(evaluate: Evaluate, log: EventLog) -> None:
    """A halt of a second after every phase of the first steps changes no time to a token."""
    events = events_of(log)
    halted: list[dict[str, Any]] = []
    late = 0
    for event, after in zip(events, [*events[1:], None], strict=True):
        halted.append(event | {"seq": len(halted), "t": event["t"] + late})
        if event["step"] < 6 and after and after["phase"] != event["phase"]:
            halt = {"cause": -1, "step": event["step"], "phase": event["phase"], "why": "user_halt", "after": "plan"}
            halted.append(halt | {"kind": "EngineHalted", "seq": len(halted), "t": event["t"] + late})
            late += 10**9
            halted.append(halt | {"kind": "EngineContinued", "seq": len(halted), "t": event["t"] + late})
    assert late > 5e9
    times = f"""([events, header, blocks, size]) => {{ {HISTORY}
        const history = build(header, empty(blocks, size), events);
        const total = name => history.steps.steps.reduce((sum, step) => sum + step.flow[name], 0);
        return ["firsts", "firstNs", "gaps", "gapNs"].map(total);
    }}"""
    rest = [header_of(log), log.header.num_blocks, log.header.block_size]
    assert evaluate(times, [halted, *rest]) == evaluate(times, [events, *rest])


def test_rows_tell_what_each_sequence_did_in_each_step(evaluate: Evaluate, log: EventLog) -> None:
    expected: dict[str, list[Any]] = {}
    tokens: dict[str, tuple[str, int]] = {}
    swapped: set[str] = set()
    for event, picture in pictures(log):
        if isinstance(event, ev.SequenceScheduled):
            tokens[event.sequence] = (WORK[event.why], event.num_tokens)
        elif isinstance(event, ev.RequestPreempted):
            (swapped.update if event.mode == "swap" else swapped.difference_update)(event.sequences)
        elif isinstance(event, ev.TokensWritten):
            for name, view in picture.sequences.items():
                resting = "swapped" if view.status == "preempted" and name in swapped else view.status
                if name in tokens:
                    kind, number = tokens[name]
                    expected[f"{event.step} {name}"] = [kind, None if kind == "decode" else number]
                elif view.status in ("waiting", "preempted"):
                    expected[f"{event.step} {name}"] = [resting, None]
            tokens = {}
    found = evaluate(
        f"""([events, header, blocks, size]) => {{ {HISTORY}
            const {{ steps }} = build(header, empty(blocks, size), events);
            const found = {{}};
            for (const {{ step, memory }} of steps.steps) for (const row of steps.inOrder()) {{
                const span = memory && spanAt(row, step);
                if (!span || span.kind === "finished") continue;
                const isPrompt = ["prefill", "recompute"].includes(span.kind);
                found[`${{step}} ${{row.name}}`] = [span.kind, isPrompt ? span.tokens : null];
            }}
            return found;
        }}""",
        [events_of(log), header_of(log), log.header.num_blocks, log.header.block_size],
    )
    assert found == expected
    assert {kind for kind, _ in found.values()} >= {"prefill", "decode"}


def test_a_history_that_is_put_together_backwards_is_the_same(evaluate: Evaluate, log: EventLog) -> None:
    events = events_of(log)
    cuts = [*sorted(random.Random(1).sample(range(5, len(events)), 6)), len(events)]
    bases = [log.snapshot(cut - 1) for cut in cuts[:-1]]
    parts = [
        {"base": msgspec.to_builtins(base, str_keys=True), "events": events[start:end]}
        for base, start, end in zip(bases, cuts, cuts[1:], strict=False)
    ]
    whole, backwards = evaluate(
        f"""([events, header, blocks, size, parts, first]) => {{ {HISTORY}
            const last = parts.pop();
            const history = build(header, last.base, last.events);
            for (const part of parts.reverse()) history.prepend(part);
            history.prepend({{ base: empty(blocks, size), events: events.slice(0, first) }});
            return [log(build(header, empty(blocks, size), events)), log(history)];
        }}""",
        [events, header_of(log), log.header.num_blocks, log.header.block_size, parts, cuts[0]],
    )
    assert backwards["steps"] == whole["steps"]
    assert backwards["rows"] == whole["rows"]


def test_what_is_dropped_leaves_the_rest_as_it_was(evaluate: Evaluate, log: EventLog) -> None:
    before, after, first = evaluate(
        f"""([events, header, blocks, size]) => {{ {HISTORY}
            const history = build(header, empty(blocks, size), events);
            const middle = history.steps.steps[Math.floor(history.steps.steps.length / 2)];
            const busy = step => history.steps.inOrder().filter(row => spanAt(row, step)).map(row => row.name).sort();
            const later = history.steps.steps.map(({{ step }}) => step).filter(step => step >= middle.step);
            const at = () => later.map(busy);
            const before = at();
            history.steps.dropBefore(middle.first);
            return [before, at(), history.steps.firstStep === middle.step];
        }}""",
        [events_of(log), header_of(log), log.header.num_blocks, log.header.block_size],
    )
    assert first
    assert after == before


def test_any_run_can_be_counted(evaluate: Evaluate) -> None:
    for seed in (3, 94, 148):
        log = random_run(random.Random(seed), 40).log
        counts = evaluate(
            f"""([events, blocks, size]) => {{ {HISTORY}
                const history = build({{run: "r"}}, empty(blocks, size), events);
                const {{ used, cached, blank }} = countStates(history.map);
                const {{ filled, cached: kept }} = history.steps.tally;
                const {{ series }} = counterSeries(history.steps, history.map, 7);
                return [[used, cached, blank], [filled.size, kept, blocks - filled.size - kept],
                    Object.values(series).flat().every(value => value === null || Number.isFinite(value))];
            }}""",
            [events_of(log), log.header.num_blocks, log.header.block_size],
        )
        assert counts[0] == counts[1]
        assert counts[2]
