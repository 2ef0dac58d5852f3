"""Request lengths: from a file in the format of the Azure LLM inference traces, or from a built-in distribution.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

The traces are published at https://github.com/Azure/AzurePublicDataset (CC-BY 4.0); none is part of this project.
"""

import csv
import random
from pathlib import Path
from typing import NamedTuple

BUILT_IN = (
    "built-in: prompts log-normal, median 700 tokens, one in six above 2,000; "
    "answers log-normal, median 150, one in six above 370; within 1 to 7,000 and 1 to 1,000"
)


class Lengths(NamedTuple):
    """One request, in tokens."""

    prompt: int
    output: int


def read_lengths(path: Path) -> list[Lengths]:
    """All requests of an Azure trace, in order of arrival. Raises ValueError if the file has another format."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if not {"ContextTokens", "GeneratedTokens"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} has the columns {rows.fieldnames}: ContextTokens and GeneratedTokens are needed")
        return [Lengths(max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))) for row in rows]


def built_in_lengths(count: int, seed: int = 0) -> list[Lengths]:
    """`count` requests from the distribution that BUILT_IN describes."""
    generator = random.Random(seed)

    def draw(median: float, sixth: float, most: int) -> int:
        # of a log-normal, one in six lies above the median times e^sigma
        return min(most, max(1, round(median * (sixth / median) ** generator.gauss(0, 1))))

    return [Lengths(draw(700, 2000, 7000), draw(150, 370, 1000)) for _ in range(count)]


def scaled(lengths: list[Lengths], factor: float) -> list[Lengths]:
    """Every length times `factor`, at least 1."""
    return [Lengths(max(1, round(p * factor)), max(1, round(o * factor))) for p, o in lengths]


def model_length(lengths: list[Lengths]) -> int:
    """The shortest power of two that every request fits into: what such a service would allow per request."""
    return 1 << (max(prompt + output for prompt, output in lengths) - 1).bit_length()
