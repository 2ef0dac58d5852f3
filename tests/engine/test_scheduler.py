"""One rule, no phases: what a step computes, who waits, who gives way, who copies: stories of one small pool."""

import pytest
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import Engine, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.events import BlockState, Event, Why
from pagelens.engine.integrity import check_integrity, check_map


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, n=n)


def events(engine: Engine, kind: type[Event] | None = None) -> list:
    return [event for event in engine.log.read(0) or [] if kind is None or isinstance(event, kind)]


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        check_integrity(engine)
    check_map(engine, engine.log.snapshot())


def shadowed(num_blocks: int, block_size: int = 4, **options) -> Engine:
    return scripted_engine(num_blocks, block_size, ShadowRunner(num_blocks, block_size), **options)


def test_prefill_chunks_and_decodes_share_a_step() -> None:
    engine = shadowed(32, max_num_batched_tokens=8)
    engine.add_request([1, 2, 3], greedy(10))
    engine.step()
    engine.add_request(list(range(20)), greedy(2))
    engine.step()
    planned = events(engine, ev.StepPlanned)[-1]
    assert (planned.sequences, planned.num_tokens) == (["A.0", "B.0"], [1, 7])
    run(engine)
    chunks = [e.num_tokens for e in events(engine, ev.SequenceScheduled) if e.sequence == "B.0"]
    assert chunks == [7, 7, 6, 1]


def test_a_decode_is_not_starved_by_prompts_that_keep_arriving() -> None:
    engine = shadowed(64, max_num_batched_tokens=16)
    engine.add_request([1, 2, 3], greedy(20))
    engine.step()
    for _ in range(19):
        engine.add_request(list(range(40)), greedy(1))
        engine.step()
    steps = [e.step for e in events(engine, ev.TokensGenerated) if "A.0" in e.sequences]
    assert steps == list(range(20))


def test_identical_prompts_admitted_in_one_step_share_their_blocks() -> None:
    engine = shadowed(16)
    prompt = list(range(10))
    engine.add_request(prompt, greedy(3))
    engine.add_request(prompt, greedy(3))
    engine.step()
    tables = engine.manager.tables
    assert tables["A.0"][:2] == tables["B.0"][:2] and tables["A.0"][2] != tables["B.0"][2]
    run(engine)


def test_generated_tokens_are_cached_too() -> None:
    engine = shadowed(16)
    first = engine.add_request([1, 2, 3], greedy(10))
    run(engine)
    second_turn = [*first.sequences[0].token_ids, 7, 8]
    engine.add_request(second_turn, greedy(1))
    run(engine)
    lookup = events(engine, ev.PrefixLookup)[-1]
    assert (lookup.hit_tokens, lookup.num_tokens) == (12, 15)


def test_caching_off_means_off() -> None:
    engine = shadowed(16, enable_prefix_caching=False)
    for _ in range(2):
        engine.add_request(list(range(12)), greedy(2))
        run(engine)
    assert not events(engine, ev.BlockSealed) and not events(engine, ev.PrefixLookup)
    assert engine.log.snapshot().count(BlockState.CACHED) == 0


def test_copy_on_write_happens_at_the_first_divergent_write_and_never_for_the_last_owner() -> None:
    engine = shadowed(32)
    request = engine.add_request([1, 2, 3, 4, 5, 6], greedy(4, n=4))  # ends in the middle of block 1
    engine.step()
    assert engine.log.snapshot().count(BlockState.USED) == 2, "the prompt's blocks are counted once"
    assert not events(engine, ev.BlockCopied), "sharing copies nothing"
    engine.step()
    copies = events(engine, ev.BlockCopied)
    assert [copy.sequence for copy in copies] == ["A.0", "A.1", "A.2"]
    assert len({copy.destination for copy in copies}) == 3 and {copy.index for copy in copies} == {1}
    by_seq = {event.seq: event for event in events(engine)}
    for copy in copies:
        scheduled = by_seq[copy.cause]
        assert isinstance(scheduled, ev.SequenceScheduled) and scheduled.sequence == copy.sequence
        assert copy.why == Why.SHARED_BLOCK and scheduled.start == 6
    run(engine)
    assert len(events(engine, ev.BlockCopied)) == 3
    assert {s.token_ids[6] for s in request.sequences} == {6, 1006, 2006, 3006}


def test_a_prompt_that_ends_on_a_block_boundary_needs_no_copy() -> None:
    engine = shadowed(32)
    engine.add_request([1, 2, 3, 4], greedy(4, n=4))
    run(engine)
    assert not events(engine, ev.BlockCopied)


def test_the_newest_request_gives_way_and_is_computed_again() -> None:
    engine = shadowed(6)
    for _ in range(2):
        engine.add_request([len(engine.requests)] * 8, greedy(12))
    run(engine)
    preempted = events(engine, ev.RequestPreempted)
    assert preempted and {e.request for e in preempted} == {"B"}
    assert all(e.needs > e.free for e in preempted)
    assert [e.sequence for e in events(engine, ev.SequenceResumed)] == ["B.0"] * len(preempted)
    ended = events(engine, ev.SequenceFinished)
    assert [(e.sequence, e.reason) for e in ended] == [("A.0", "length"), ("B.0", "length")]


def test_nothing_is_admitted_in_a_plan_that_preempted() -> None:
    engine = shadowed(6, enable_prefix_caching=False)
    for _ in range(3):
        engine.add_request([len(engine.requests)] * 8, greedy(12))
    run(engine)
    preempted_in = {e.step for e in events(engine, ev.RequestPreempted)}
    admitted_in = {e.step for e in events(engine, ev.SequenceAdmitted) + events(engine, ev.SequenceResumed)}
    assert preempted_in and not preempted_in & admitted_in


def test_twenty_requests_on_three_blocks_all_end() -> None:
    engine = shadowed(3)
    for number in range(20):
        engine.add_request([number] * 6, greedy(5))
    run(engine)
    reasons = [e.reason for e in events(engine, ev.SequenceFinished)]
    assert reasons == ["length"] * 20


def test_a_sequence_that_outgrows_the_pool_alone_ends_with_a_reason() -> None:
    engine = shadowed(3)
    request = engine.add_request([1] * 6, greedy(50))
    run(engine)
    sequence = request.sequences[0]
    assert sequence.finish_reason == "out_of_blocks"
    assert sequence.num_tokens == 13, "the pool's 12 slots, and the token that found no place"
    assert engine.manager.pool.num_free == 3


def test_branches_of_one_request_that_do_not_fit_together_run_in_turn() -> None:
    engine = shadowed(4)
    request = engine.add_request([1, 2, 3, 4, 5], greedy(7, n=4))
    run(engine)
    assert [s.finish_reason for s in request.sequences] == ["length"] * 4
    assert events(engine, ev.RequestPreempted)[0].sequences == ["A.3"]


def test_a_waiting_request_says_why_not_now() -> None:
    engine = shadowed(8)
    engine.add_request([1] * 20, greedy(8))
    engine.add_request([2] * 12, greedy(8))
    engine.step()
    blocked = engine.log.snapshot().blocked
    assert blocked is not None and (blocked.sequence, blocked.why) == ("B.0", "waits_for_blocks")
    assert (blocked.needs, blocked.free, blocked.watermark) == (3, 3, 1)
    run(engine)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_num_seqs": 1}, Why.WAITS_FOR_SEQUENCE_SLOT),
        ({"max_num_batched_tokens": 8}, Why.WAITS_FOR_TOKEN_BUDGET),
    ],
)
def test_other_obstacles_have_names(options: dict, why: Why) -> None:
    engine = shadowed(32, **options)
    engine.add_request([1] * 8, greedy(4))
    engine.add_request([2] * 8, greedy(4))
    engine.step()
    assert events(engine, ev.StepPlanned)[-1].why == why
    run(engine)


def test_abort_frees_everything_in_any_state() -> None:
    engine = shadowed(6, max_num_seqs=2)
    for number in range(4):
        engine.add_request([number] * 8, greedy(12))
    for _ in range(9):
        engine.step()
    statuses = {s.status for s in [*engine.scheduler.running, *engine.scheduler.waiting]}
    assert statuses == {"running", "preempted", "waiting"}
    for name in "DBAC":
        engine.abort(name)
        check_integrity(engine)
    assert not engine.has_work and engine.manager.pool.num_free == 6 and not engine.requests
    check_map(engine, engine.log.snapshot())


@pytest.mark.parametrize(("policy", "victim"), [("", "C"), ("example_policies:OldestGivesWay", "B")])
def test_a_policy_chooses_the_victim(policy: str, victim: str) -> None:
    engine = shadowed(9, policy=policy)
    for number in range(3):
        engine.add_request([number] * 8, greedy(12))
    run(engine)
    assert events(engine, ev.RequestPreempted)[0].request == victim


def test_a_policy_that_answers_nonsense_is_not_followed() -> None:
    engine = shadowed(6, policy="example_policies:Nonsense")
    for number in range(2):
        engine.add_request([number] * 8, greedy(12))
    with pytest.warns(UserWarning, match="the policy chose"):
        run(engine)
    assert len(events(engine, ev.SequenceFinished)) == 2
