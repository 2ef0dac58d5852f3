"""`pagelens lab`: get an exercise, and have it graded."""

from pathlib import Path
from typing import Annotated

import typer

from . import lab
from .console import messages, out

lab_app = typer.Typer(no_args_is_help=True, help="Exercises: write one decision of the engine, and have it graded.")


@lab_app.command()
def start(
    name: Annotated[str, typer.Argument(help="Name of the lab, for example eviction.")],
    to: Annotated[Path, typer.Option(help="Folder to write the file into.")] = Path(),
) -> None:
    """Write the file that you complete."""
    with messages():
        target = lab.start(name, to)
        out.print(f"{target}: complete it, then `pagelens lab check {name} {target}`", highlight=False, soft_wrap=True)


@lab_app.command()
def check(
    name: Annotated[str, typer.Argument(help="Name of the lab.")],
    file: Annotated[Path, typer.Argument(help="Your file.")],
    junit: Annotated[Path | None, typer.Option(help="Also write the result as JUnit XML.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that your code may take.")] = lab.TIME_LIMIT,
) -> None:
    """Run your file on the lab's workload and say how many points it has, and why. Exit code 1: not all."""
    with messages():
        checks = lab.check(name, file, time_limit)
        for line in lab.report(checks):
            out.print(line, style="red" if line.startswith("✗") else "", markup=False, highlight=False, soft_wrap=True)
        if junit is not None:
            lab.write_junit(name, checks, junit)
        raise typer.Exit(not all(each.passed for each in checks))
