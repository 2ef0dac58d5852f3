"""How a lesson is told: in a terminal, or part by part on a page of the site.

A lesson is a list of parts, functions that run something and print what came of it, and a list of pictures, functions
that draw the same runs. `docs/build_tools/lessons.py` calls them one at a time.
"""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from drawing import standalone


def tell(parts: Sequence[Callable[[], object]], pictures: Sequence[Callable[[], str]]) -> None:
    """Run a lesson's parts in order; with `--pictures DIR`, write its pictures as SVG files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", metavar="DIR", type=Path, help="write the pictures of this run into a folder")
    folder: Path | None = parser.parse_args().pictures
    for number, part in enumerate(parts, start=1):
        first_line = (inspect.getdoc(part) or "").partition("\n")[0]
        print(f"\n{number}. {first_line}\n")
        part()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            path = folder / f"{picture.__name__}.svg"
            path.write_text(standalone(picture()), encoding="utf-8")
            print(f"wrote {path}")
