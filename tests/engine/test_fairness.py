"""Nobody waits for ever: priorities age, and who was preempted often enough is left alone while there is another.

Both bounds are printed (`pytest -s`) and asserted. The engine is scripted; a token a step.
"""

import itertools
import random
from collections import Counter
from typing import Any, NamedTuple

import pytest
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import LLM, Engine, RequestError, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.integrity import check_integrity

pytestmark = pytest.mark.usefixtures("one_thread")


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0)


def events(engine: Engine, *kinds: type) -> list[Any]:
    return [event for event in engine.log.read(0) or [] if isinstance(event, kinds)]


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        check_integrity(engine)


def order_of_start(engine: Engine) -> list[str]:
    return [event.sequence.split(".")[0] for event in events(engine, ev.SequenceAdmitted)]


# ---------------------------------------------------------------------------------------------------------- priorities


def one_at_a_time(**options: Any) -> Engine:
    return scripted_engine(64, 4, max_num_seqs=1, **{"scheduling_policy": "priority"} | options)


def test_the_most_urgent_starts_first_and_of_equals_the_first_come():
    engine = one_at_a_time()
    for name, priority in [("a", 5), ("b", 0), ("c", 5), ("d", -3), ("e", 0)]:
        engine.add_request([1], params(2), request_id=name, priority=priority)
    run(engine)
    assert order_of_start(engine) == ["d", "b", "e", "a", "c"]


def test_first_come_first_served_is_what_it_says():
    engine = one_at_a_time(scheduling_policy="fcfs")
    for name in "abc":
        engine.add_request([1], params(2), request_id=name)
    run(engine)
    assert order_of_start(engine) == ["a", "b", "c"]


@pytest.mark.parametrize(("priority", "aging"), [(1, 5), (3, 5), (3, 20), (10, 4)])
def test_priorities_age_within_a_bound(priority, aging):
    """A request of priority p goes before newcomers of priority 0 that come p * priority_aging_steps steps later.

    Here one comes with every step, twice as many as can be served: the patient one lets p * priority_aging_steps of
    them go first, 2 steps each, and not one more.
    """
    engine = one_at_a_time(priority_aging_steps=aging)
    engine.add_request([1], params(2), request_id="patient", priority=priority)
    for number in range(2 * priority * aging + 5):
        engine.add_request([1], params(2), request_id=f"newcomer {number}")
        engine.step()
    ahead, bound = order_of_start(engine).index("patient"), priority * aging
    started = [event.step for event in events(engine, ev.SequenceAdmitted) if event.sequence == "patient.0"]
    print(
        f"priority {priority}, aging {aging}: {ahead} newcomers before it, bound {bound}; started in step {started[0]}"
    )
    assert bound - 1 <= ahead <= bound
    assert started[0] <= 2 * bound


def test_without_aging_it_would_wait_for_ever():
    engine = one_at_a_time(priority_aging_steps=10**9)
    engine.add_request([1], params(2), request_id="patient", priority=1)
    for number in range(300):
        engine.add_request([1], params(2), request_id=f"newcomer {number}")
        engine.step()
    assert "patient" not in order_of_start(engine)


def test_a_preempted_request_goes_back_to_its_place_in_the_order():
    """Under priority the queue is sorted: one that had to give way starts again before whoever is less urgent."""
    engine = scripted_engine(6, 4, ShadowRunner(6, 4), scheduling_policy="priority", enable_prefix_caching=False)
    for name, priority in [("first", 0), ("second", 1), ("idle", 8), ("urgent", 0)]:
        engine.add_request([ord(name[0])] * 8, params(12), request_id=name, priority=priority)
    run(engine)
    assert events(engine, ev.RequestPreempted)
    order = [event.sequence.split(".")[0] for event in events(engine, ev.SequenceFinished)]
    assert order.index("urgent") < order.index("idle") and order[-1] == "idle"


@pytest.mark.parametrize("host_blocks", [0, 12], ids=["recompute", "swap"])
@pytest.mark.parametrize("lengths", itertools.product([5, 8], [5, 8], [4, 6, 8]))
def test_an_urgent_request_does_not_give_way_to_an_idle_one(host_blocks, lengths):
    """All grow until they do not fit together. The idle one goes, whoever needs room, though the others came later."""
    runner = ShadowRunner(10, 4, 0, host_blocks)  # 5 for each of two
    engine = scripted_engine(10, 4, runner, host_blocks, scheduling_policy="priority")
    for (name, priority), length in zip([("idle", 9), ("medium", 5), ("urgent", 0)], lengths, strict=True):
        engine.add_request([priority] * length, params(12), request_id=name, priority=priority)
    engine.step()
    run(engine)
    assert {event.request for event in events(engine, ev.RequestPreempted)} == {"idle"}
    assert events(engine, ev.SequenceFinished)[-1].sequence == "idle.0"


# ------------------------------------------------------------------------------------------------ priorities in the LLM


def test_generate_takes_priorities_for_all_or_one_for_each():
    llm = LLM(kernel="torch", num_gpu_blocks_override=32, max_num_seqs=1, scheduling_policy="priority", log_events=True)
    results = llm.generate(["a", "b", "c"], params(3), priority=[2, 0, 1], progress=False)
    assert [result.prompt for result in results] == ["a", "b", "c"]
    assert order_of_start(llm.engine) == ["B", "C", "A"]
    assert len(llm.generate(["a", "b"], params(3), priority=4, progress=False)) == 2
    with pytest.raises(RequestError, match="there are 2 prompts but 3 priorities: give one, or one for each"):
        llm.generate(["a", "b"], params(3), priority=[1, 2, 3])


def test_a_priority_that_nobody_heeds_is_refused():
    llm = LLM(kernel="torch", num_gpu_blocks_override=32)
    with pytest.raises(RequestError, match="priority is 3, but scheduling_policy is 'fcfs', which heeds none: set"):
        llm.generate(["a", "b"], params(3), priority=[0, 3])
    with pytest.raises(RequestError, match="priority is -1, but scheduling_policy is 'fcfs'"):
        llm.engine.add_request("a", params(3), priority=-1)
    assert not llm.engine.has_work


# --------------------------------------------------------------------------------------------------------- preemptions


def crowded(policy: str, seed: int, host_blocks: int, max_preemptions: int) -> Engine:
    """Short prompts with long answers, one more with each step: many fit at first, few in the end. Run to it."""
    chance = random.Random(seed)
    runner = ShadowRunner(30, 1, seed, host_blocks)
    engine = scripted_engine(
        30, 1, runner, host_blocks, policy=POLICIES + policy, max_preemptions=max_preemptions, max_num_seqs=32
    )
    for _ in range(40):
        engine.add_request(chance.choices(range(50), k=chance.randint(1, 2)), params(chance.randint(10, 28)))
        engine.step()
    run(engine)
    return engine


class Preemption(NamedTuple):
    """Who went, how often it had gone before, and the others who ran, with how often they had."""

    request: str
    times: int
    others: dict[str, int]


def preemptions(engine: Engine) -> list[Preemption]:
    """All of a run, read from its events; the others are without the one for whom room was needed."""
    found: list[Preemption] = []
    running: set[str] = set()
    times: Counter[str] = Counter()
    for event in engine.log.read(0) or []:
        match event:
            case ev.SequenceAdmitted() | ev.SequenceResumed():
                running.add(event.sequence.split(".")[0])
            case ev.SequenceFinished():
                running.discard(event.sequence.split(".")[0])
            case ev.RequestPreempted() if event.request in running:  # else what a waiting one had left is taken
                running.discard(event.request)
                others = running - {event.for_sequence.split(".")[0]}
                found.append(Preemption(event.request, times[event.request], {name: times[name] for name in others}))
                times[event.request] += 1
    return found


POLICIES = "pagelens.engine.policies:"


@pytest.mark.parametrize("host_blocks", [0, 12], ids=["recompute", "swap"])
@pytest.mark.parametrize("bound", [1, 3])
@pytest.mark.parametrize("policy", ["DefaultPolicy", "LowestPriority", "FewestLostTokens", "MostBlocksFreed"])
def test_who_was_preempted_often_enough_is_no_victim_while_another_exists(policy, bound, host_blocks):
    engine = crowded(policy, 1, host_blocks, max_preemptions=bound)
    found = preemptions(engine)
    for victim in found:
        assert victim.times < bound or all(times >= bound for times in victim.others.values()), victim
    spared = sum(victim.times < bound <= max(victim.others.values(), default=0) for victim in found)
    most = max(Counter(victim.request for victim in found).values())
    print(f"{policy}, bound {bound}: {len(found)} preemptions, {most} of one request, {spared} times one was spared")
    assert spared and most > bound, "crowded enough to tell: some were spared, and at times all had reached the bound"
    assert {event.reason for event in events(engine, ev.SequenceFinished)} == {"length"}, "and all of them end"


def test_without_the_bound_the_same_ones_go_again():
    found = preemptions(crowded("FewestLostTokens", 1, 0, max_preemptions=10**6))
    assert any(victim.times >= 3 > min(victim.others.values(), default=3) for victim in found)
