"""What a condition matches, and what is said about one that cannot be."""

from typing import Any

import pytest

from pagelens.engine import events as ev
from pagelens.engine.condition import Condition, ConditionError
from pagelens.engine.event_names import Facts
from pagelens.engine.events import BlockState, Phase


def event(kind: type[ev.Event], **fields: Any) -> ev.Event:
    return kind(seq=70, step=31, phase=Phase.PLAN, t=0, why="shared_block", cause=69, **fields)


COPIED = event(ev.BlockCopied, source=17, destination=25, sequence="A.2", index=4)
SHARED = event(ev.BlockShared, block=17, sequence="B.0", index=0, ref_count=3, state=BlockState.USED)
PREEMPTED = event(ev.RequestPreempted, request="C", sequences=["C.0"], mode="swap", for_sequence="A.0", needs=2, free=1)
GENERATED = event(ev.TokensGenerated, sequences=["A.0", "B.0"], token_ids=[5, 6], texts=["", ""])


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("BlockCopied", [COPIED]),
        ("RequestPreempted", [PREEMPTED]),
        ("block == 17", [COPIED, SHARED]),
        ("block == 25", [COPIED]),
        ("block != 17", []),
        ("block in (18, 25)", [COPIED]),
        ("block not in [18, 19]", [COPIED, SHARED]),
        ("source == 25", []),
        ("BlockCopied and block == 17", [COPIED]),
        ("BlockCopied and block == 18", []),
        ("ref_count > 2", [SHARED]),
        ("2 < ref_count < 4", [SHARED]),
        ("ref_count > 3", []),
        ('request == "A"', [COPIED, GENERATED]),
        ('for_sequence == "A.0"', [PREEMPTED]),
        ('request == "C"', [PREEMPTED]),
        ('sequence == "B.0"', [SHARED, GENERATED]),
        ('sequence == "B.0" and not BlockShared', [GENERATED]),
        ("BlockCopied or TokensGenerated", [COPIED, GENERATED]),
        ("(BlockCopied or BlockShared) and block == 25", [COPIED]),
        ('why == "shared_block" and phase == "plan" and step == 31', [COPIED, SHARED, PREEMPTED, GENERATED]),
        ('kind in ("BlockCopied", "BlockShared")', [COPIED, SHARED]),
        ('mode == "swap" and needs >= 2', [PREEMPTED]),
        ("index <= source", [COPIED]),
        ("seq == 70 and cause != -1 and RequestPreempted", [PREEMPTED]),
        ("  BlockCopied  ", [COPIED]),
    ],
)
def test_a_condition_matches_what_it_says(text: str, matching: list[ev.Event]) -> None:
    condition = Condition(text)
    found = [e for e in (COPIED, SHARED, PREEMPTED, GENERATED) if condition.matches(Facts(e, 5, False))]
    assert found == matching


def test_free_is_the_pool_after_the_event() -> None:
    low = Condition("free < 3")
    assert low.matches(Facts(SHARED, 2, changed_free=True))
    assert not low.matches(Facts(SHARED, 3, changed_free=True))
    assert not low.matches(Facts(SHARED, 2, changed_free=False)), "not again while it stays low"
    assert not low.matches(Facts(GENERATED, 2, changed_free=False))
    assert Condition("TokensGenerated and free < 3").matches(Facts(GENERATED, 2, changed_free=False))
    either = Condition("BlockCopied or free < 3")
    assert either.matches(Facts(COPIED, 9, False)) and either.matches(Facts(SHARED, 2, True))
    assert not either.matches(Facts(SHARED, 2, False))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the condition is empty"),
        ("   ", "the condition is empty"),
        ("x" * 501, "501 characters, allowed are 500"),
        ("BlockCopied and blok == 17", r"at column 17 .* unknown name 'blok', perhaps block; .* known are: block,"),
        ("é == 1 or blok == 17", r"at column 1 "),
        ("block == 1 or é.x == 2", r"at column 15 "),
        ("BlockCopyed", "unknown name 'BlockCopyed', perhaps BlockCopied; .* known are: BlockAllocated, BlockCopied"),
        ("EngineHalted", "unknown name 'EngineHalted'"),
        ("request == A", "at column 12 .* unknown name 'A'.* text is quoted"),
        ("sequence == A.0", r"cannot read .* at column 14: .*text is quoted"),
        ("block = 17", r"at column 7: .*equality is =="),
        ("block", "block alone is no condition: compare it, as in block == 17"),
        ("block == '17'", "at column 10 .* block is a number, '17' is text"),
        ("request == 3", "at column 12 .* request is text, 3 is a number"),
        ("source == reason", "source and reason are a number and a text"),
        ('state == "free"', "state is never 'free', but one of: used, cached, blank"),
        ('kind == "Copied"', "kind is never 'Copied', but one of: BlockAllocated"),
        ('sequence < "B"', "sequence is text: compare it with ==, != or in"),
        ("block is 3", "compare with ==, !=, <, <=, >, >=, in or not in"),
        ("BlockCopied and ref_count > 2", "no event can ever match .* BlockCopied has only block, cause, destination"),
        ("BlockCopied and BlockShared", "cannot be BlockCopied and BlockShared at once; join kinds with or"),
        ("ref_count > 2 and source == 1", "no kind has ref_count and source together"),
        ("1 == 1", "this compares nothing that an event has"),
        ("block == True", "only a name, a number or a quoted text can be compared"),
        ("block == [1, [2]]", "only a name, a number or a quoted text"),
        ("-block == 1", "only a name, a number or a quoted text"),
        ('f"{block}" == "1"', "only a name, a number or a quoted text"),
        ("block == __import__('os').getpid()", "only a name, a number or a quoted text"),
        ("sequence.__class__ == 1", "only a name, a number or a quoted text"),
        ("__import__('os').system('true')", "only event kinds and comparisons can stand here"),
        ("(lambda: 1)()", "only event kinds and comparisons can stand here"),
        ("[block for block in (1,)]", "only event kinds and comparisons can stand here"),
        ("(block := 3)", "only event kinds and comparisons can stand here"),
        ("17", "only event kinds and comparisons can stand here"),
        ("block == 17; quit()", "cannot read"),
        ("block == 17\x00", "cannot read"),
        ("(" * 300 + "block == 1" + ")" * 150, "cannot read|characters"),
        ("not " * 100 + "blok == 1", "unknown name 'blok'"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_is_known(text: str, words: str) -> None:
    with pytest.raises(ConditionError, match=words):
        Condition(text)
