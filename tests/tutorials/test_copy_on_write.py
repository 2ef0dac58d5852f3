"""Lesson 2: what its page claims is so."""

from pagelens.engine import events as ev

LESSON = "02_copy_on_write"


def test_sharing_without_a_rule_corrupts_silently(lesson) -> None:
    assert lesson.without_permission() == (200, 200)


def test_three_answers_need_two_copies_and_the_last_keeps_the_source(lesson, says) -> None:
    run = lesson.three_answers()
    copies = [(copy.sequence, copy.source, copy.destination) for copy in run.copies()]
    assert copies == [("A.0", 1, 2), ("A.1", 1, 3)]
    assert all(copy.why == "shared_block" for copy in run.copies())
    written = run.after(1, ev.TokensWritten)
    assert [written.sequences[f"A.{n}"].table for n in range(3)] == [[0, 2], [0, 3], [0, 1]]
    tokens = {written.sequences[f"A.{n}"].token_ids[6] for n in range(3)}
    assert len(tokens) == 3, "the picture shows three different tokens"
    says("Two copies for three answers, not three.", "A.2 has written where the prompt's own tokens lie")


def test_the_picture_of_the_plan_shows_copies_that_are_not_made_yet(lesson) -> None:
    planned = lesson.three_samples().after(1, ev.StepPlanned)
    assert planned.pending_copies == [(1, 2), (1, 3)]
    assert lesson.in_the_plan().count('class="move"') == 2
    assert 'class="move"' not in lesson.after_the_fork() + lesson.written()


def test_the_events_are_the_ones_that_the_prose_walks_through(lesson, says) -> None:
    events = {event.seq: event for event in lesson.the_events()}
    counts = [e.ref_count for e in events.values() if getattr(e, "block", None) == 1 and not hasattr(e, "source")]
    assert counts == [2, 3, 2, 1]
    last = events[max(events)]
    assert isinstance(last, ev.SequenceScheduled) and last.sequence == "A.2"
    assert isinstance(events[17], ev.BlockAllocated) and isinstance(events[19], ev.BlockReleased)
    says(f"(event {last.seq})", "Event 17 takes a block before event 19 gives one back")


def test_the_causes_lead_back_to_the_request(lesson) -> None:
    chain = lesson.chain_of_causes()
    assert isinstance(chain[0], ev.BlockCopied) and isinstance(chain[-1], ev.RequestArrived)
    assert len(chain) == 5


def test_copies_are_due_exactly_when_the_last_block_is_partial(lesson, says) -> None:
    copies = lesson.who_keeps_the_source()
    assert copies == {3: 2, 4: 0, 5: 2, 6: 2, 7: 2}
    says("prompts of 3 to 7 tokens")


def test_beams_copy_all_along(lesson, says) -> None:
    run, again = lesson.beams_copy_all_along()
    steps = {copy.step for copy in run.copies()}
    assert again > len(run.copies())
    assert steps == set(range(1, 12)) - {3, 7, 11}
    assert 0.38 <= run.saved <= 0.66 and 0.06 <= lesson.three_samples().saved <= 0.31
    says("Steps 3, 7 and 11 are missing", "6 to 31 %", "38 to 66 %")
    assert all(count == 0 for count in run.last.ref_count)


def test_only_the_last_of_one_token_answers_would_need_no_copy(lesson) -> None:
    """The exercise: answers of one token never write after the fork."""
    assert not lesson.run(lesson.PROMPT, lesson.SamplingParams(n=8, max_tokens=1)).copies()
    assert len(lesson.run(lesson.PROMPT, lesson.SamplingParams(n=8, max_tokens=3, ignore_eos=True)).copies()) == 7
