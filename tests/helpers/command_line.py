"""The command line in this process, which spares a test the seconds that the libraries take to load."""

from subprocess import CompletedProcess

from typer.testing import CliRunner

from pagelens.viz.cli import app


def pagelens(*arguments: str, stdin: str = "") -> "CompletedProcess[str]":
    """`pagelens ARGUMENTS`: exit code, output and messages."""
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, list(arguments), input=stdin)
    return CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
