"""Lesson 3: what its page claims is so."""

from pagelens.engine import events as ev
from pagelens.engine.events import BlockState

LESSON = "03_prefix_caching"


def found(lookups: list[ev.PrefixLookup]) -> list[tuple[int, int]]:
    return [(event.num_tokens, event.hit_tokens) for event in lookups]


def test_the_second_user_finds_the_common_beginning(lesson, says) -> None:
    assert found(lesson.second_user()) == [(14, 0), (14, 12)]
    engine, ended, planned = lesson.two_users()
    after = engine.log.snapshot(ended)
    assert after.count(BlockState.CACHED) == 4 and after.state[4] is BlockState.BLANK
    assert engine.log.snapshot(planned).sequences["B.0"].table[:3] == [0, 1, 2]
    assert not [event for event in engine.log.read(0) if isinstance(event, ev.BlockCopied)]
    says("12 of 14 tokens were found", "computes two instead of fourteen", "B.0 begins with blocks 0, 1 and 2")
    assert after.sealed_text[3][0].strip() == "foo"


def test_hashes_chain(lesson) -> None:
    sealed = lesson.the_chain()
    by_name = {(event.sequence, event.index): event for event in sealed}
    assert [index for name, index in by_name if name == "B.0"] == [3]
    assert by_name["B.0", 3].parent == by_name["A.0", 3].parent == by_name["A.0", 2].hash
    assert by_name["B.0", 3].hash != by_name["A.0", 3].hash


def test_prompts_of_one_step_share(lesson) -> None:
    lookups, plan = lesson.in_one_step()
    assert found(lookups) == [(14, 0), (14, 12)]
    assert [event.block for event in plan if isinstance(event, ev.BlockShared)] == [0, 1, 2]
    assert not [event for event in plan if isinstance(event, ev.TokensWritten)]


def test_at_most_all_tokens_but_one_are_reused(lesson, says) -> None:
    assert found(lesson.never_all_of_it()) == [(12, 8), (13, 12)]
    says("Of 12 tokens, 8 are found")


def test_a_second_turn_finds_the_answer_too(lesson, says) -> None:
    first, second = lesson.second_turn()
    assert second.hit_tokens == 16 > first.num_tokens
    says("16 of the first 20 tokens are found")


def test_other_salts_find_nothing(lesson) -> None:
    assert found(lesson.salts()) == [(14, 12), (14, 0)]


def test_tails_go_before_heads_and_that_matters(lesson, says) -> None:
    results = lesson.tails_go_first()
    assert results == {"tails first (default)": ([3, 2], 8), "heads first": ([0, 1], 0)}
    _, seq, engine = lesson.crowded()
    picture = engine.log.snapshot(seq)
    assert picture.sealed_text[0][0] == "You" and "foo" not in str(picture.sealed_text)
    says("Both evict two of A's blocks", "Blocks 2 and 3 held")


def test_three_hundred_users_compute_the_system_prompt_once(lesson, says) -> None:
    on, off = lesson.many_users()
    assert on.found == 299 * 64 == 19_136 and off.found == 0
    assert on.computed + on.found == off.computed
    assert off.peak - on.peak >= 50 and abs(on.steps - off.steps) < 10
    says("299 · 64 = 19,136")
