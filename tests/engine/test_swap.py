"""Swap: who gives way keeps what was computed, in the host pool; shared blocks stay where they are.

Most engines here are scripted and carry out every move on an array (`ShadowRunner`), so a block that came back wrong
would be noticed by its sequence. That real keys and values come back right is in test_equality.py.
"""

from typing import Any

import pytest
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import LLM, Engine, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.kv_cache import num_host_blocks

pytestmark = pytest.mark.usefixtures("one_thread")


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, n=n)


def small_engine(num_blocks: int = 6, host_blocks: int = 12, **options: Any) -> Engine:
    return scripted_engine(num_blocks, 4, ShadowRunner(num_blocks, 4, 0, host_blocks), host_blocks, **options)


def events(engine: Engine, kind: type) -> list[Any]:
    return [event for event in engine.log.read(0) or [] if isinstance(event, kind)]


def step(engine: Engine) -> None:
    engine.step()
    check_integrity(engine)
    check_map(engine, engine.log.snapshot())


def run(engine: Engine) -> None:
    while engine.has_work:
        step(engine)
    assert engine.manager.pool.num_free == engine.manager.pool.num_blocks
    assert engine.manager.host_pool.num_free == engine.manager.host_pool.num_blocks


def until_swapped(engine: Engine) -> None:
    while not events(engine, ev.BlocksSwappedOut):
        step(engine)


def two_that_do_not_fit(**options: Any) -> Engine:
    """A and B begin with 2 blocks of 4 each; at their ends they would have 5 each, and there are 6."""
    engine = small_engine(**options)
    for number in range(2):
        engine.add_request([number] * 8, greedy(12))
    return engine


def test_what_was_computed_survives_and_nothing_is_computed_twice():
    engine = two_that_do_not_fit()
    run(engine)
    preempted, resumed = events(engine, ev.RequestPreempted), events(engine, ev.SequenceResumed)
    assert [(event.request, event.mode, event.lost_tokens) for event in preempted] == [("B", "swap", 0)]
    assert preempted[0].num_computed_tokens == [resumed[0].num_computed_tokens] and resumed[0].num_computed_tokens > 8
    computed = sum(event.num_tokens for event in events(engine, ev.SequenceScheduled))
    assert computed == 2 * (8 + 12 - 1), "each token once; the last ones need not be computed"


def test_without_a_host_pool_the_same_tokens_are_computed_again():
    engine = two_that_do_not_fit(host_blocks=0, enable_prefix_caching=False)
    run(engine)
    preempted = events(engine, ev.RequestPreempted)
    assert {event.mode for event in preempted} == {"recompute"}
    computed = sum(event.num_tokens for event in events(engine, ev.SequenceScheduled))
    assert computed == 2 * (8 + 12 - 1) + sum(event.lost_tokens for event in preempted)


def test_the_events_tell_which_block_went_where_and_back():
    engine = two_that_do_not_fit()
    until_swapped(engine)
    out = events(engine, ev.BlocksSwappedOut)[0]
    assert engine.manager.tables["B.0"] == [-1 - block for block in out.host_blocks]
    assert engine.log.snapshot().sequences["B.0"].table == engine.manager.tables["B.0"]
    assert engine.requests["B"].sequences[0].status == "preempted"
    run(engine)
    back = events(engine, ev.BlocksSwappedIn)[0]
    assert (back.indices, back.host_blocks) == (out.indices, out.host_blocks)
    by_seq = {event.seq: event for event in engine.log.read(0)}
    assert isinstance(by_seq[out.cause], ev.RequestPreempted) and isinstance(by_seq[back.cause], ev.SequenceResumed)


def test_a_preempted_sequence_resumes_only_with_room_for_all_of_it():
    """And says what it waits for: its host blocks and the block of its next token, 3 + 1."""
    engine = two_that_do_not_fit()
    until_swapped(engine)
    step(engine)
    blocked = engine.log.snapshot().blocked
    assert blocked is not None and (blocked.sequence, blocked.why) == ("B.0", "waits_for_blocks")
    assert blocked.needs >= 3 and blocked.needs + blocked.watermark > blocked.free


def test_only_blocks_that_nobody_else_holds_move():
    """A and B share 2 cached blocks of their prompt. B's entries for those stay on the device, and count as held."""
    engine = small_engine(7)
    prompt = list(range(9))
    engine.add_request(prompt, greedy(14))
    engine.add_request([*prompt[:8], 50], greedy(14))
    until_swapped(engine)
    out, table = events(engine, ev.BlocksSwappedOut)[0], engine.manager.tables["B.0"]
    assert out.sequence == "B.0" and 0 not in out.indices and 1 not in out.indices
    assert table[:2] == engine.manager.tables["A.0"][:2]
    assert [engine.manager.pool.ref_count[block] for block in table[:2]] == [2, 2]
    run(engine)


def test_all_sequences_of_a_request_go_together_and_their_shared_blocks_stay():
    engine = small_engine(12)
    engine.add_request([7] * 12, greedy(16))
    engine.add_request([1, 2, 3, 4, 5, 6], greedy(12, n=3))
    until_swapped(engine)
    preempted = events(engine, ev.RequestPreempted)[0]
    assert (preempted.request, preempted.sequences) == ("B", ["B.0", "B.1", "B.2"])
    shared = {engine.manager.tables[name][0] for name in preempted.sequences}
    assert len(shared) == 1 and min(shared) >= 0, "the first block of the prompt, once, on the device"
    run(engine)
    assert len(events(engine, ev.BlockCopied)) == 2, "and nobody had to copy because of it"


@pytest.mark.parametrize("host_blocks", [1, 2])
def test_a_host_pool_that_is_too_small_is_not_used(host_blocks):
    """All blocks of the request or none: half a sequence would have to be computed again anyway."""
    engine = two_that_do_not_fit(host_blocks=host_blocks)
    run(engine)
    assert {event.mode for event in events(engine, ev.RequestPreempted)} == {"recompute"}
    assert not events(engine, ev.BlocksSwappedOut)


def test_when_the_host_pool_is_full_the_next_one_is_computed_again():
    engine = small_engine(9, host_blocks=3)
    for number in range(3):
        engine.add_request([number] * 8, greedy(14))
    run(engine)
    assert [event.mode for event in events(engine, ev.RequestPreempted)][:2] == ["swap", "recompute"]
    assert [event.reason for event in events(engine, ev.SequenceFinished)] == ["length"] * 3


def test_the_last_resort_is_to_take_the_shared_blocks_of_who_waits():
    """B and C wait on the host and keep the 2 blocks of their common prompt. A, alone now, needs these too."""
    engine = small_engine(8)
    prompt = list(range(10, 18))
    engine.add_request([1] * 4, greedy(28))
    engine.add_request(prompt, greedy(10))
    engine.add_request([*prompt, 50], greedy(6))
    run(engine)
    went = [(event.request, event.mode) for event in events(engine, ev.RequestPreempted)]
    assert went[:2] == [("C", "swap"), ("B", "swap")] and {mode for _, mode in went[2:]} == {"recompute"}
    for dropped in events(engine, ev.RequestPreempted)[2:]:
        assert dropped.for_sequence == "A.0" and dropped.free < dropped.needs and dropped.lost_tokens > 8
    assert sorted(event.sequence for event in events(engine, ev.SequenceFinished)) == ["A.0", "B.0", "C.0"]
    assert {event.reason for event in events(engine, ev.SequenceFinished)} == {"length"}


def test_abort_of_a_swapped_out_request_frees_its_host_blocks():
    engine = two_that_do_not_fit()
    until_swapped(engine)
    held = len(events(engine, ev.BlocksSwappedOut)[0].host_blocks)
    assert engine.manager.host_pool.num_free == 12 - held
    engine.abort("B")
    check_integrity(engine)
    check_map(engine, engine.log.snapshot())
    assert engine.manager.host_pool.num_free == 12
    assert sorted(events(engine, ev.HostBlocksFreed)[0].host_blocks) == sorted(
        events(engine, ev.BlocksSwappedOut)[0].host_blocks
    )
    run(engine)


def test_a_swap_whose_step_failed_is_lost_and_computed_again():
    """Nobody knows what reached the host, so nothing of it is used; B was not in the step and goes on."""
    engine = two_that_do_not_fit()
    runner = engine.runner
    assert isinstance(runner, ShadowRunner)
    while True:
        plan = engine.plan()
        if plan.swap_out:
            break
        engine.commit(plan, engine.launch(plan))
    runner.fail_next = True
    with pytest.raises(RuntimeError) as failure:
        engine.launch(plan)
    engine.fail(plan, failure.value)
    check_integrity(engine)
    check_map(engine, engine.log.snapshot())
    assert engine.manager.host_pool.num_free == 12 and "B.0" not in engine.manager.tables
    run(engine)
    reasons = {event.sequence: event.reason for event in events(engine, ev.SequenceFinished)}
    assert reasons == {"A.0": "error", "B.0": "length"}


def test_reset_of_the_prefix_cache_leaves_swapped_out_blocks_alone():
    engine = two_that_do_not_fit()
    until_swapped(engine)
    engine.reset_prefix_cache()
    check_integrity(engine)
    run(engine)  # the shadow runner would notice
    assert [event.reason for event in events(engine, ev.SequenceFinished)] == ["length"] * 2


def test_swap_space_is_counted_in_bytes_of_blocks():
    llm = LLM(kernel="torch", num_gpu_blocks_override=4, swap_space=0.01)
    spec, config = llm.engine.loaded.spec, llm.engine.config
    per_block = spec.bytes_per_token() * config.block_size
    assert num_host_blocks(config, spec) == llm.engine.manager.host_pool.num_blocks == int(0.01 * 2**30) // per_block
    assert LLM(kernel="torch", num_gpu_blocks_override=4).engine.manager.host_pool.num_blocks == 0


def test_swapped_out_bytes_are_those_of_the_blocks(oracle):
    """Between swap-out and swap-in the host holds what the device held, layer by layer."""
    llama = oracle("llama")
    llm = LLM(
        str(llama.folder),
        kernel="torch",
        block_size=8,
        num_gpu_blocks_override=7,
        swap_space=0.01,
        log_events=True,
        enable_prefix_caching=False,
    )
    engine = llm.engine
    for stream in (0, 1):
        engine.add_request(llama.prompt(16, stream), SamplingParams(max_tokens=24, temperature=0))
    there, back = 0, 0
    while engine.has_work:
        plan = engine.plan()
        leaving = {move.destination: engine.runner.cache.kv[move.source].clone() for move in plan.swap_out}
        results = engine.launch(plan)
        host, kv = engine.runner.cache.host, engine.runner.cache.kv
        for host_block, content in leaving.items():
            assert content.any() and host[host_block].equal(content)
        for move in plan.swap_in:  # the last slot of a block may have been written since
            assert kv[move.destination, :, :, :, :-1].equal(host[move.source, :, :, :, :-1])
        there, back = there + len(plan.swap_out), back + len(plan.swap_in)
        engine.commit(plan, results)
    assert there == back >= 2
