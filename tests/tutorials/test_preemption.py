"""Lesson 5: what its page claims is so."""

from pagelens.engine import events as ev

LESSON = "05_preemption"


def test_the_newest_gives_way(lesson, says) -> None:
    preempted = lesson.who_gives_way()
    assert [(e.step, e.request, e.for_sequence, e.lost_tokens) for e in preempted] == [
        (5, "C", "A.0", 8),
        (9, "B", "A.0", 16),
    ]
    says("C lost 8 tokens in step 5 but computed 9 in step 15")
    back = [e for e in lesson.run("recompute") if isinstance(e, ev.SequenceScheduled) and e.sequence == "C.0"]
    assert (back[1].step, back[1].start, back[1].num_tokens) == (15, 0, 9)


def test_c_sits_out_before_it_is_preempted(lesson, says) -> None:
    plans = {e.step: e for e in lesson.run("recompute") if isinstance(e, ev.StepPlanned)}
    assert all("C.0" not in plans[step].sequences for step in range(1, 5))
    assert [event.free for event in plans.values() if event.step == 1] == [0] or plans[1].sequences == ["A.0", "B.0"]
    says("In step 1 all three need a third block, and two are free")


def test_the_victims_blocks_are_in_other_tables_in_the_same_plan(lesson) -> None:
    shown = lesson.the_moment()
    released = {event.block for event in shown if isinstance(event, ev.BlockReleased)}
    allocated = {event.block: event.sequence for event in shown if isinstance(event, ev.BlockAllocated)}
    assert released == set(allocated) and set(allocated.values()) == {"A.0", "B.0"}
    assert isinstance(shown[-1], ev.StepPlanned) and shown[-1].why == "waits_after_preemption"
    preempted = next(event for event in shown if isinstance(event, ev.RequestPreempted))
    assert all(event.cause == preempted.seq for event in shown if isinstance(event, ev.BlockReleased))


def test_recompute_computes_again_the_cache_halves_it_and_swap_moves(lesson, says) -> None:
    costs = lesson.three_ways()
    recompute, cached, swap = costs.values()
    assert recompute.preemptions == cached.preemptions == swap.preemptions == 2
    assert recompute.again == 24 == 2 * cached.again and recompute.moved == 0
    assert swap.again == 0 and swap.moved == 12
    says("that halves the work")


def test_a_swap_leaves_the_shared_block_on_the_device(lesson, says) -> None:
    swaps = lesson.what_a_swap_moves()
    assert all(0 not in event.indices for event in swaps)
    assert [event.step for event in swaps] == [5, 5, 6, 9, 16, 16]
    after = lesson.picture_around(ev.BlocksSwappedOut, after=True)
    assert after.sequences["B.0"].table[0] == after.sequences["B.1"].table[0] == 2 and after.ref_count[2] == 2
    before = lesson.picture_around(ev.BlocksSwappedOut, after=False)
    assert before.step == 4 and before.count("used") == 8
    says(
        "Step 4.",
        "All eight blocks are in use",
        "In step 6 one answer comes back at once and has to go again in step 9",
    )


def test_the_victim_matters(lesson) -> None:
    costs = lesson.which_victim()
    fewest = costs["FewestLostTokens"]
    assert all(fewest.again <= cost.again for cost in costs.values())
    most = costs["MostBlocksFreed"]
    assert most.again / most.preemptions > max(
        cost.again / cost.preemptions for name, cost in costs.items() if name != "MostBlocksFreed"
    )


def test_all_end_with_a_reason(lesson, says) -> None:
    preempted, ends = lesson.nobody_starves()
    assert ends == {"length": 20, "out_of_blocks": 1}
    assert preempted and max(preempted.values()) <= 3
    assert "that would need sixteen" and -(-63 // 4) == 16
    says("one request that would need sixteen")


def test_the_exercises_have_answers(lesson) -> None:
    def preemptions(num_blocks: int) -> int:
        engine = lesson.scripted_engine(num_blocks, enable_prefix_caching=False)
        for _ in range(3):
            lesson.add(engine, 8, 12)
        return lesson.cost_of(lesson.events_of(engine)).preemptions

    assert 8 < next(count for count in range(8, 16) if preemptions(count) == 0) < 15
    engine = lesson.scripted_engine(enable_prefix_caching=False, host_blocks=3)
    lesson.add(engine, 8, 16)
    lesson.add(engine, 6, 10, n=2)
    modes = [event.mode for event in lesson.events_of(engine) if isinstance(event, ev.RequestPreempted)]
    assert modes[0] == "recompute"
