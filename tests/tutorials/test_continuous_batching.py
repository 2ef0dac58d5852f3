"""Lesson 4: what its page claims is so."""

from pagelens.engine import events as ev

LESSON = "04_continuous_batching"


def first_token(events: list[ev.Event], name: str) -> int:
    return next(e.step for e in events if isinstance(e, ev.TokensGenerated) and name in e.sequences)


def test_continuous_batching_needs_fewer_steps(lesson, says) -> None:
    static, continuous = lesson.static_and_continuous()
    assert (static.steps, continuous.steps) == (22, 13)
    assert f"{static.share_idle:.0%}" == "49%" and continuous.share_idle < 0.15
    says("22 steps against 13", "49 % of the seats were idle")


def test_both_compute_the_same_tokens(lesson) -> None:
    def computed(events: list[ev.Event]) -> int:
        return sum(e.num_tokens for e in events if isinstance(e, ev.SequenceScheduled))

    assert computed(lesson.static_run()) == computed(lesson.continuous_run())


def test_the_fifth_text_starts_when_a_seat_is_free(lesson, says) -> None:
    assert first_token(lesson.continuous_run(), "E.0") == 3
    assert first_token(lesson.static_run(), "E.0") == 12
    says("first token in step 3 instead of step 12", "nine steps later")


def test_a_waiting_text_says_what_it_waits_for(lesson) -> None:
    reasons = lesson.who_waits_for_what()
    assert [plan.blocked for plan in reasons] == ["E.0", "F.0", "G.0", "H.0", ""]
    assert {plan.why for plan in reasons} == {"waits_for_sequence_slot", "nothing_waits"}


def test_chunks_bound_the_longest_step(lesson, says) -> None:
    sizes = lesson.whole_or_in_chunks()
    assert max(sizes[64]) == 63 and max(sizes[16]) == 16 and sum(sizes[64]) == sum(sizes[16])
    assert first_token(lesson.long_prompt(64), "D.0") == 4 and first_token(lesson.long_prompt(16), "D.0") == 8
    says("Step 4 computes 63 tokens", "in step 8 instead of step 4")


def test_the_others_write_on_in_every_step(lesson) -> None:
    for event in lesson.long_prompt(16):
        if isinstance(event, ev.StepPlanned) and 4 <= event.step <= 8:
            assert event.num_tokens[:3] == [1, 1, 1]


def test_chunks_take_what_is_left_of_the_budget(lesson, says) -> None:
    chunks = [(e.start, e.num_tokens, e.why) for e in lesson.one_rule() if e.sequence == "D.0"]
    assert chunks[0] == (0, 13, "prefill_chunk") and chunks[-1] == (52, 8, "prefill")
    assert chunks[2][0] == 26
    says("its last 8 fit", "26 computed tokens")


def test_a_running_text_is_never_starved_by_prompts(lesson) -> None:
    gap, done = lesson.never_starved()
    assert gap == 1 and done >= 8
