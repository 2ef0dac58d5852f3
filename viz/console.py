"""What the commands have in common: where they print, how an error becomes a message, and options of one meaning."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from pagelens.engine import PagelensError
from pagelens.engine.models.loading_progress import Progress

out = Console()
err = Console(stderr=True)

Model = Annotated[str, typer.Option(help="Folder or hub id of a checkpoint; empty is the embedded model.")]
Kernel = Annotated[str, typer.Option(help="auto (the fastest that runs here), triton, numba or torch.")]
BlockSize = Annotated[int, typer.Option(help="Tokens per block.")]
Blocks = Annotated[int | None, typer.Option("--num-gpu-blocks-override", help="Size of the pool in blocks.")]
Seed = Annotated[int, typer.Option(help="From which requests derive their seeds.")]


@contextmanager
def loading() -> Iterator[Progress]:
    """While a model is loaded: a line on a terminal's stderr that says what is going on."""
    with err.status("loading") as status:
        yield lambda stage, share: status.update(f"{stage}: {share:.0%}" if share else stage)


@contextmanager
def messages() -> Iterator[None]:
    """Turn deliberate errors into a message and exit code 2, Ctrl-C into exit code 130."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (PagelensError, OSError) as error:
        err.print(f"[bold red]pagelens:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        err.print("stopped")
        raise typer.Exit(130) from None
