"""Scenario files: what is read, and what is refused with which words."""

from pathlib import Path
from typing import Any

import pytest

from pagelens.viz.scenario import ScenarioError, setup_of, submissions_of
from pagelens.viz.scenario_file import SCENARIOS, read_scenario

NAMES = sorted(path.stem for path in SCENARIOS.glob("*.toml"))

GOOD = """
title = "Two"
summary = "Two requests."
watch = "The blocks."
picture = "BlockAllocated"
runner = "scripted"
engine = { num_gpu_blocks_override = 8, max_model_len = 64, block_size = 4 }

[[arrivals]]
step = 3
count = 3
every = 2
prompt_tokens = [6, 7]
shared_prefix = 4
max_tokens = 5

[[arrivals]]
prompt_tokens = 2
max_tokens = [1, 2]
count = 2
sampling = { n = 2 }

[[questions]]
before = "BlockAllocated"
ask = "block"
text = "Which?"
answer = "block"
why = "It is the first."
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "two.toml"
    path.write_text(text)
    return path


def test_arrivals_become_requests_in_order(tmp_path: Path) -> None:
    requests = submissions_of(read_scenario(written(tmp_path, GOOD)))
    assert [(r.step, len(r.prompt), r.params.max_tokens, r.params.n) for r in requests] == [
        (0, 2, 1, 2),
        (0, 2, 2, 2),
        (3, 6, 5, 1),
        (5, 7, 5, 1),
        (7, 6, 5, 1),
    ]
    shared = [r.prompt for r in requests[2:]]
    assert all(prompt[:4] == [0, 1, 2, 3] for prompt in shared)
    own = [token for r in requests for token in r.prompt if token > 3]
    assert len(own) == len(set(own)), "tokens that are not shared differ"


def test_a_variant_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    text = GOOD + '[[variants]]\nname = "big"\ntitle = "Big"\nengine = { block_size = 8 }\nserving = "contiguous"\n'
    text = text.replace("sampling = { n = 2 }", "")
    setup = setup_of(read_scenario(written(tmp_path, text)), "big")
    assert (setup.config.block_size, setup.config.max_model_len, setup.serving) == (8, 64, "contiguous")
    with pytest.raises(ScenarioError, match="two has no variant 'huge', but big"):
        setup_of(read_scenario(tmp_path / "two.toml"), "huge")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Two"', "title = ", "two.toml: Invalid value"),
        ('title = "Two"', "", "two.toml: Object missing required field `title`"),
        ('title = "Two"', 'title = "Two"\ncolour = 1', "unknown field `colour`"),
        ('runner = "scripted"', 'runner = "fast"', "Invalid enum value 'fast'"),
        ("block_size = 4", "block_size = 5", "block_size is 5, allowed is a power of two"),
        ("block_size = 4", "blocks = 4", "has no option 'blocks'"),
        ("max_model_len = 64, ", "", "must give num_gpu_blocks_override and max_model_len"),
        ("step = 3", "step = -1", "arrival 1: step and every are 0 or more"),
        ("count = 3", "count = 0", "arrival 1: count is 0"),
        ("count = 3", "count = 9000", "the last request comes in step 18001, allowed is 5000"),
        ("count = 2", "count = 9000", "there are 9003 requests, allowed are 1 to 5000"),
        ("max_tokens = 5", "max_tokens = 0", "max_tokens is 0, allowed is at least 1"),
        ("max_tokens = 5", "max_tokens = []", "arrival 1: a list of lengths is empty"),
        ("{ n = 2 }", "{ n = 0 }", "n is 0, allowed is 1 to 64"),
        ("{ n = 2 }", "{ colour = 0 }", "arrival 2: sampling has no parameter colour"),
        ("prompt_tokens = 2", 'prompt = "A"', "arrival 2: a script reads no prompt"),
        ("shared_prefix = 4", "shared_prefix = 7", "arrival 1: prompt_tokens is 6, allowed is 7"),
        ('runner = "scripted"', 'runner = "real"', "prompt_tokens and shared_prefix are for runner"),
        ('runner = "scripted"', 'runner = "scripted"\nclock = "time"', "clock is 'time', but a script takes none"),
        ('runner = "scripted"', 'runner = "scripted"\nserving = "contiguous"', "contiguous memory cannot share"),
        (
            'watch = "The blocks."',
            'watch = "The blocks."\ntables = "yes"',
            "Expected `bool`, got `str` - at `$.tables`",
        ),
        ('picture = "BlockAllocated"', 'picture = "BlockMoved"', "unknown name 'BlockMoved', perhaps BlockCopied"),
        ('before = "BlockAllocated"', 'before = "block == "', "cannot read 'block =='"),
        ('answer = "block"', 'answer = "source"', "question 1: answer is 'source', but BlockAllocated has only"),
        ('answer = "block"', 'answer = "count"', 'answer = "count" needs ask = "number" and `of`'),
        ('ask = "block"', 'ask = "choice"', 'choices are for ask = "choice", which needs at least two'),
        ('ask = "block"', 'ask = "colour"', "Invalid enum value 'colour'"),
        ('text = "Which?"', 'text = "Which?"\nnth = 0', "question 1: nth is 0"),
        ('text = "Which?"', 'text = "Which?"\nvariant = "x"', "question 1: there is no variant 'x'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_the_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError) as refused:
        read_scenario(written(tmp_path, GOOD.replace(old, new)))
    assert message in str(refused.value)
    assert str(refused.value).startswith("two.toml: ")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_scenario(tmp_path / "none.toml")


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_asks_three_questions_says_why_and_concludes(name: str) -> None:
    scenario: Any = read_scenario(SCENARIOS / f"{name}.toml")
    assert len(scenario.questions) >= 3
    assert len(scenario.tour) >= 1
    assert scenario.conclusion
    for question in scenario.questions:
        assert question.hint and question.why
