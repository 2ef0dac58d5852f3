"""A contender: a process that loads the model once, and then times each batch that it is sent as a line of JSON.

    peers.py                                           the contender
                                          <--------    "numba kernel, torch 2.13.0"      loaded, and ready
    {"prompts": [[5, 17], [8]],           -------->
     "num_new": 64}                       <--------    {"seconds": 1.93, "tokens": [[4, 9, ...], [7, ...]]}

It waits for the next line while others run. This file needs the standard library only, since a peer may live in an
environment of its own.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], list[list[int]]]
"""(prompts, how many tokens to generate for each, whatever they are) -> those tokens, greedy."""


class Run(NamedTuple):
    """What a contender made of a batch."""

    seconds: float
    tokens: list[list[int]]


class ContenderGone(Exception):
    """The process has ended; the text says why."""


def serve(load: Callable[[str, str], tuple[str, Generate]]) -> None:
    """The contender's side: `load(folder, dtype)` returns a description and what generates. Ends with its input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    what, generate = load(sys.argv[-2], sys.argv[-1])
    _send(replies, what)
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        tokens = generate(job["prompts"], job["num_new"])
        _send(replies, {"seconds": time.perf_counter() - started, "tokens": tokens})


class Contender:
    """The other side: starts the process and talks to it. Use it as a context manager.

    Raises ContenderGone from there on, whenever the process has ended before its answer.
    """

    def __init__(self, command: list[str], folder: str, dtype: str, log: Path, environment: dict[str, str]) -> None:
        self._log = log
        try:
            with log.open("w") as file:
                pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file}
                environment = dict(os.environ) | environment
                self._process = subprocess.Popen([*command, folder, dtype], env=environment, text=True, **pipes)
        except OSError as error:
            raise ContenderGone(str(error)) from error

    def __enter__(self) -> "Contender":
        self.what: str = self._read()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def run(self, prompts: Prompts, num_new: int) -> Run:
        """Have it generate `num_new` tokens for each prompt."""
        assert self._process.stdin
        try:
            _send(self._process.stdin, {"prompts": prompts, "num_new": num_new})
        except BrokenPipeError:
            raise ContenderGone(self._why()) from None
        done = Run(**self._read())
        lengths = {len(tokens) for tokens in done.tokens}
        if len(done.tokens) != len(prompts) or lengths != {num_new}:
            raise ContenderGone(f"{len(done.tokens)} answers of {lengths} tokens, not {len(prompts)} of {num_new}")
        return done

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise ContenderGone(self._why())
        return json.loads(line)

    def _why(self) -> str:
        """The last line of its log that is not indented: an error's message."""
        lines = [line for line in self._log.read_text().splitlines() if line and not line[0].isspace()]
        return lines[-1][:200] if lines else f"it ended with exit code {self._process.wait()}, and said nothing"


def _send(to: TextIO, message: Any) -> None:
    to.write(json.dumps(message) + "\n")
    to.flush()
