"""How far loading a model has come, for whoever waits for it.

progress("reading the weights", 0.4)      the stage in words, and the share of it that is done
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

Progress = Callable[[str, float], None]


def download_bar(progress: Progress) -> type[Any]:
    """A bar for the hub's client that tells `progress` instead of drawing itself."""

    class Bar(tqdm):  # type: ignore[misc]
        def display(self, *_: object, **__: object) -> None:
            if self.unit == "B" and self.total:
                progress("fetching from the hub", min(self.n / self.total, 1.0))

    return Bar


def follow_weights(
    weights: Iterator[tuple[str, Tensor]], folder: Path, progress: Progress
) -> Iterator[tuple[str, Tensor]]:
    """The same weights, told by their bytes as they are read from `folder`."""
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    done = 0
    for name, tensor in weights:
        done += tensor.nbytes
        progress("reading the weights", min(done / total, 1.0))
        yield name, tensor
