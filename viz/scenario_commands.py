"""`pagelens scenario`: name, check and record runs that teach one thing."""

from pathlib import Path
from typing import Annotated

import typer

from .console import Kernel, messages, out
from .scenario_file import SCENARIOS, read_scenario
from .scenario_report import report
from .scenario_runs import ScenarioRuns, finished_run

scenario_app = typer.Typer(no_args_is_help=True, help="Runs that teach one thing, as files that you can write.")


@scenario_app.command("list")
def list_all() -> None:
    """Name the scenarios that come with Pagelens."""
    with messages():
        runs = ScenarioRuns((SCENARIOS,))
        for name in runs.paths():
            out.print(f"{name:<24}{runs.read(name).title}", markup=False, highlight=False, soft_wrap=True)


@scenario_app.command()
def check(file: Annotated[Path, typer.Argument(help="Your .toml.")], kernel: Kernel = "auto") -> None:
    """Run a scenario of yours, and name every stop and every answer. Exit code 2: something is wrong."""
    with messages():
        for line in report(read_scenario(file), kernel):
            out.print(line, markup=False, highlight=False, soft_wrap=True)


@scenario_app.command()
def record(
    name: Annotated[str, typer.Argument(help="Name of a scenario, or your .toml.")],
    to: Annotated[Path, typer.Option("--out", help="The .kvtrace to write.")],
    variant: Annotated[str, typer.Option(help="Which of its variants; the first if there are several.")] = "",
    kernel: Kernel = "auto",
) -> None:
    """Run a scenario and record every event."""
    with messages():
        scenario = read_scenario(Path(name)) if name.endswith(".toml") else ScenarioRuns((SCENARIOS,)).read(name)
        run = finished_run(scenario, variant or scenario.variant_names[0], kernel)
        to.write_bytes(run.trace())
        out.print(f"{to}: {run.num_events} events of {run.num_steps} steps", markup=False, soft_wrap=True)
