"""Who shares cached prefixes, and how they are all forgotten at once.

A salt keeps users apart who could otherwise tell from the time to the first token what somebody else has asked.
"""

from typing import Any

import pytest
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import LLM, Engine, RequestError, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.events import BlockState
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.prefix_cache import salt_hash

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = list(range(10))  # two and a half blocks of 4


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, n=n)


def shadowed(num_blocks: int = 32, host_blocks: int = 0, **options: Any) -> Engine:
    return scripted_engine(num_blocks, 4, ShadowRunner(num_blocks, 4, 0, host_blocks), host_blocks, **options)


def events(engine: Engine, kind: type) -> list[Any]:
    return [event for event in engine.log.read(0) or [] if isinstance(event, kind)]


def check(engine: Engine) -> None:
    check_integrity(engine)
    check_map(engine, engine.log.snapshot())


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        check(engine)


def hits(engine: Engine) -> list[int]:
    return [event.hit_tokens for event in events(engine, ev.PrefixLookup)]


# ----------------------------------------------------------------------------------------------------------- the salt


def test_equal_prompts_share_only_under_the_same_salt():
    engine = shadowed()
    for salt in ["", "ann", "bob", "ann", ""]:
        engine.add_request(PROMPT, greedy(2), cache_salt=salt)
        run(engine)
    assert hits(engine) == [0, 0, 0, 8, 8]


def test_not_even_in_the_same_step():
    engine = shadowed()
    for salt in ["ann", "bob", "ann"]:
        engine.add_request(PROMPT, greedy(2), cache_salt=salt)
    engine.step()
    tables = engine.manager.tables
    assert tables["A.0"][:2] == tables["C.0"][:2]
    assert not set(tables["A.0"]) & set(tables["B.0"])
    run(engine)


def test_generated_tokens_are_salted_too():
    engine = shadowed()
    first = engine.add_request(PROMPT, greedy(8), cache_salt="ann")
    run(engine)
    second_turn = [*first.sequences[0].token_ids, 77]
    for salt in ["bob", "ann"]:
        engine.add_request(second_turn, greedy(2), cache_salt=salt)
        run(engine)
    assert hits(engine) == [0, 0, 16]


def test_a_salt_that_looks_like_part_of_the_chain_is_no_way_in():
    """The hash of the salt begins the chain; neither it nor a block's own hash, used as a salt, leads to a block."""
    engine = shadowed()
    engine.add_request(PROMPT, greedy(2), cache_salt="ann")
    run(engine)
    sealed = events(engine, ev.BlockSealed)
    assert sealed[0].parent == salt_hash("ann") and len(salt_hash("ann")) == 32
    for guess in [salt_hash("ann"), sealed[0].hash, "", " ann", "Ann"]:
        engine.add_request(PROMPT[4:], greedy(2), cache_salt=guess)
        engine.add_request(PROMPT, greedy(2), cache_salt=guess)
        run(engine)
    assert hits(engine) == [0] * 11


def test_samples_of_a_salted_request_share_as_ever_and_survive_preemption():
    engine = shadowed(8)
    engine.add_request(PROMPT, greedy(12), cache_salt="ann")
    engine.add_request(PROMPT, greedy(12, n=2), cache_salt="bob")
    run(engine)
    assert events(engine, ev.RequestPreempted) and events(engine, ev.BlockCopied)
    parents = {event.parent for event in events(engine, ev.BlockSealed) if event.index == 0}
    assert parents == {salt_hash("ann"), salt_hash("bob")}
    assert {event.reason for event in events(engine, ev.SequenceFinished)} == {"length"}


def test_generate_takes_salts_for_all_or_one_for_each():
    llm = LLM(kernel="torch", num_gpu_blocks_override=64, block_size=4, log_events=True)
    text = "A hacker is a person who enjoys learning the details of a computer"
    answers = [
        answer.outputs[0].token_ids
        for salts in ("ann", "ann", ["bob", "ann"], "")
        for answer in llm.generate([text, text], greedy(4), cache_salt=salts, progress=False)
    ]
    assert len(set(map(tuple, answers))) == 1
    some = hits(llm.engine)[1]
    assert some > 0 and hits(llm.engine) == [0, some, some, some, 0, some, 0, some]
    with pytest.raises(RequestError, match="there are 2 prompts but 1 cache salts: give one, or one for each"):
        llm.generate([text, text], greedy(4), cache_salt=["ann"])


# ---------------------------------------------------------------------------------------------------------- the reset


def test_reset_forgets_cached_and_used_blocks_and_touches_no_content():
    engine = shadowed()
    engine.add_request(PROMPT, greedy(2))
    run(engine)
    engine.add_request([50, *PROMPT], greedy(20))
    for _ in range(3):
        engine.step()
    before = engine.log.snapshot()
    cached, used = before.count(BlockState.CACHED), before.count(BlockState.USED)
    assert cached == 2 and used == 4
    assert engine.reset_prefix_cache() == 2 + 3, "the cached ones and the full ones in use"
    check(engine)
    after = engine.log.snapshot()
    assert (after.count(BlockState.CACHED), after.count(BlockState.USED)) == (0, used) and not after.hash
    assert engine.reset_prefix_cache() == 0
    run(engine)  # the shadow runner would notice if the running one had lost anything
    assert events(engine, ev.SequenceFinished)[-1].reason == "length"


def test_after_a_reset_nothing_is_found_until_it_is_computed_again():
    engine = shadowed()
    for reset in [False, False, True, False]:
        if reset:
            engine.reset_prefix_cache()
        engine.add_request(PROMPT, greedy(2))
        run(engine)
    assert hits(engine) == [0, 8, 0, 8]


def test_blocks_in_use_at_a_reset_turn_blank_when_released():
    engine = shadowed()
    engine.add_request(PROMPT, greedy(6))
    engine.step()
    engine.reset_prefix_cache()
    run(engine)
    picture = engine.log.snapshot()
    assert picture.count(BlockState.CACHED) == 1, "only what was filled after the reset: tokens 12 to 15"
    engine.add_request([*PROMPT, 10, 11, 12, 13], greedy(2))
    run(engine)
    assert hits(engine)[-1] == 0, "and it cannot be reached without what came before"


def test_a_shared_prefix_is_forgotten_once_and_both_go_on():
    engine = shadowed()
    for _ in range(2):
        engine.add_request(PROMPT, greedy(10))
    engine.step()
    assert engine.reset_prefix_cache() == 2
    unsealed = events(engine, ev.BlockUnsealed)
    assert [event.why for event in unsealed] == ["cache_reset"] * 2
    check(engine)
    run(engine)
    assert engine.manager.pool.num_free == 32


def test_a_failed_step_after_a_reset_takes_back_only_its_own_seals():
    engine = shadowed()
    engine.add_request(PROMPT, greedy(9))
    for _ in range(2):
        engine.step()
    engine.reset_prefix_cache()
    assert isinstance(engine.runner, ShadowRunner)
    engine.runner.fail_next = True
    engine.step()
    check(engine)
    engine.add_request(PROMPT, greedy(2))
    run(engine)
    assert hits(engine) == [0, 0]


@pytest.mark.parametrize("host_blocks", [0, 20], ids=["recompute", "swap"])
def test_reset_while_requests_wait_preempted(host_blocks):
    engine = shadowed(6, host_blocks)
    for number in range(2):
        engine.add_request([number] * 8, greedy(12))
    while not events(engine, ev.RequestPreempted):
        engine.step()
    engine.reset_prefix_cache()
    check(engine)
    run(engine)
    assert [event.reason for event in events(engine, ev.SequenceFinished)] == ["length"] * 2


def test_reset_changes_no_token(oracle):
    """Whatever a real model computed before, with the cache as it is or emptied before every step."""
    llama = oracle("llama")
    prompts = [llama.prompt(length) for length in (20, 21, 30, 20)]
    llm = LLM(str(llama.folder), kernel="torch", block_size=8, num_gpu_blocks_override=60)
    plain = [result.outputs[0].token_ids for result in llm.generate(prompts, greedy(8), progress=False)]
    requests = []
    for prompt in prompts:
        requests.append(llm.engine.add_request(prompt, greedy(8)))
        llm.engine.reset_prefix_cache()
        llm.engine.step()
        check_integrity(llm.engine)
    while llm.engine.has_work:
        llm.engine.reset_prefix_cache()
        llm.engine.step()
    assert [request.sequences[0].output_token_ids for request in requests] == plain
