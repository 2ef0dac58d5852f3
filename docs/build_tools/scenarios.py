"""The scenarios for docs/scenarios.md, from their files: what each shows, its picture, its questions."""

import html
from pathlib import Path

from pagelens.viz.scenario import Scenario
from pagelens.viz.scenario_file import SCENARIOS, read_scenario

IMAGES = Path(__file__).parents[1] / "images" / "scenarios"


def scenario(name: str) -> str:
    """The section of one scenario."""
    read = read_scenario(SCENARIOS / f"{name}.toml")
    return "\n\n".join(
        [
            f"## {read.title}",
            read.summary,
            read.watch,
            _picture(read),
            _variants(read),
            _questions(read),
            read.conclusion,
        ]
    )


def scenario_file(name: str) -> str:
    """The file itself."""
    return f"```toml\n{(SCENARIOS / f'{name}.toml').read_text(encoding='utf-8').rstrip()}\n```"


def _picture(read: Scenario) -> str:
    if not (IMAGES / f"{read.name}.png").exists():
        raise FileNotFoundError(f"there is no picture of {read.name}: run docs/build_tools/scenario_pictures.py")
    return f"![{html.escape(read.title)}, after `{read.picture}`](images/scenarios/{read.name}.png)"


def _variants(read: Scenario) -> str:
    if not read.variants:
        return ""
    return "Side by side: " + "; ".join(f"*{variant.title}*" for variant in read.variants) + "."


def _questions(read: Scenario) -> str:
    lines = [f'??? question "What it asks ({len(read.questions)})"', ""]
    for question in read.questions:
        lines += [f"    **{question.text}** {question.hint}", "", f"    {question.why}", ""]
    return "\n".join(lines)
