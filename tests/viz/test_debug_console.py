"""The debugger in a terminal: sessions as a person would type them."""

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scripted import scripted_engine

from pagelens.engine import EngineLoop, SamplingParams
from pagelens.viz.debug_console import DebugConsole

pytestmark = pytest.mark.timeout(120)


class Terminal:
    """Types commands into a console over a scripted engine; one letter of a prompt is one token."""

    def __init__(self) -> None:
        engine = scripted_engine(16, 4)
        engine.tokenize = lambda prompt: [ord(letter) for letter in prompt]  # type: ignore[method-assign,assignment]
        self.loop = EngineLoop(engine).start()
        self.out = io.StringIO()
        self.console = DebugConsole(self.loop, stdin=io.StringIO(), stdout=self.out)

    def type(self, *commands: str) -> str:
        """Carry out commands; returns what the last one printed."""
        for command in commands:
            self.out.truncate(self.out.seek(0))
            assert not self.console.onecmd(command)
        return self.out.getvalue()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.loop.stop()


def test_break_at_a_copy_look_around_and_go_on(terminal: Terminal) -> None:
    assert terminal.type('submit "abcdef" n=2 max_tokens=3') == "A joined\n"
    assert terminal.type("break BlockCopied") == "breakpoint 1: BlockCopied\n"
    halted = terminal.type("run")
    assert "A.0 +1: '[6]'" in halted
    assert "breakpoint 1, BlockCopied" in halted and "A.0 writes into block 1, which others hold" in halted
    assert terminal.console.prompt == "(halted after plan of step 1) "
    where = terminal.type("where")
    assert "halted after plan of step 1" in where
    assert "3 used, 0 cached, 13 blank, of 16 with 4 tokens" in where
    assert "running   A.0   [0 2] 6 of 7 tokens computed, 1 now" in where
    assert "pending   copies 1 -> 2: no byte has moved yet" in where
    block = terminal.type("block 2")
    assert "block 2 is used, in 1 table" in block and "logical block 1 of A.0" in block
    assert "pending copy 1 -> 2: no byte has moved yet" in block
    assert "<- " in block and "A arrived with a prompt of 6 tokens" in block.splitlines()[-1]
    terminal.type("phase")
    assert terminal.console.prompt == "(halted after launch of step 1) "
    assert "pending" not in terminal.type("where")
    assert terminal.type("step") == "A.0 +1: '[7]'\nA.1 +1: '[1007]'\n"
    assert terminal.type("run").splitlines()[-3:] == ["A.0 ended: length", "A.1 ended: length", "nothing is left to do"]
    assert terminal.console.prompt == "(halted before step 3) "
    assert terminal.type("breakpoints") == "1: BlockCopied (matched once)\n"


def test_requests_sent_in_the_middle_of_a_step(terminal: Terminal) -> None:
    terminal.type('submit "abc" max_tokens=50', "step", "phase")
    assert terminal.type('submit "xy"') == "B will join when this step is over\n"
    assert "queued    B: will join when this step is over" in terminal.type("where")
    assert terminal.type("abort A") == "A will end when this step is over\n"
    assert "A was withdrawn by its user" in terminal.type("step")
    assert "waiting   B.0" in terminal.type("where")
    assert terminal.type("abort B") == "B ended\n"


def test_run_to_a_token_and_until_an_event(terminal: Terminal) -> None:
    terminal.type('submit "abcdef" n=2 max_tokens=9')
    assert "A.0 +1" in terminal.type("token A.0")
    assert "there, BlockCopied" in terminal.type("until BlockCopied")
    assert "there, BlockSealed" in terminal.type("until BlockSealed and block == 2")
    assert "nothing is left to do" in terminal.type("until StepFailed")


def test_events_and_their_causes(terminal: Terminal) -> None:
    terminal.type('submit "abcdef" n=2 max_tokens=2', "run")
    events = terminal.type("events 3").splitlines()
    assert len(events) == 3 and "the engine halted after commit  (user halt)" in events[-1]
    assert len(terminal.type("events").splitlines()) == 10
    copied = next(e for e in terminal.loop.log.read(0) or [] if type(e).__name__ == "BlockCopied")
    chain = terminal.type(f"why {copied.seq}").splitlines()
    assert f"{copied.seq:>6}  step 1 plan    A.0 writes into block 1" in chain[0]
    assert "A.0 computes 1 token from position 6 on  (next token)" in chain[1]
    assert "A arrived" in chain[-1] and all(line.startswith("<- ") for line in chain[1:])


def test_breakpoints_are_listed_switched_and_deleted(terminal: Terminal) -> None:
    assert terminal.type("breakpoints") == "there is no breakpoint\n"
    terminal.type('break ref_count > 2 and request == "A"', "disable 1")
    assert terminal.type("break") == '1: ref_count > 2 and request == "A" (disabled, matched 0 times)\n'
    terminal.type("enable 1", "delete 1")
    assert terminal.type("breakpoints") == "there is no breakpoint\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("frob", "there is no command 'frob'"),
        ("break blok == 1", "at column 1 of 'blok == 1': unknown name 'blok', perhaps block"),
        ("until", "the condition is empty"),
        ("delete", "which breakpoint? Give its number"),
        ("delete x", "'x' is no number of a breakpoint"),
        ("delete 7", "there is no breakpoint 7; there are: none"),
        ("step", "there is nothing to do: send a request first"),
        ("token Z.0", "there is no unfinished sequence 'Z.0'; there are: none"),
        ("block 16", "there is no block 16: the pool has 0 to 15"),
        ("block", "which block?"),
        ("why 9724", "there is no event 9724; events held: 0 to"),
        ("submit", "the prompt is empty"),
        ('submit "abc', "a prompt is quoted"),
        ("submit abc def", "'def' is no option like n=2 (quote a prompt of several words)"),
        ("submit abc n=x", "n is 'x', but has to be a number"),
        ("submit abc n=0", "n is 0"),
        ("submit abc logit_bias=1", "no option"),
        ("abort Z", "there is no unfinished request 'Z'"),
    ],
)
def test_a_mistake_is_told_and_the_session_goes_on(terminal: Terminal, command: str, words: str) -> None:
    assert words in terminal.type(command)
    assert terminal.type("submit abc") == "A joined\n"


def test_every_command_has_its_help(terminal: Terminal) -> None:
    listed = terminal.type("help")
    for command in ("break", "delete", "breakpoints", "run", "step", "phase", "token", "halt", "where", "block"):
        assert command in listed
        assert terminal.type(f"help {command}").startswith(command)
    assert "EOF" not in listed
    assert terminal.type("halt") == "halted before step 0\n" and terminal.type("", "# a comment") == ""
    assert terminal.console.completedefault("BlockC") == ["BlockCopied"]


def test_every_event_has_its_sentence(terminal: Terminal) -> None:
    terminal.loop.submit_all([(6 * letter, SamplingParams(max_tokens=12, n=2)) for letter in "abcdef"])
    terminal.type("run")
    for line in terminal.type("events 10000").splitlines():
        assert "  (" in line and not any(kind in line for kind in ("Block", "Sequence", "Step", "Request")), line


def test_ctrl_c_halts_a_running_engine(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.loop.steps_per_second = 20
    terminal.type("submit abc max_tokens=400")

    def interrupted(timeout: float | None = None) -> bool:
        time.sleep(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal.console.debugger, "wait", interrupted)
    assert "A.0 +" in terminal.type("run")
    assert terminal.loop.halted and terminal.loop.engine.has_work


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pagelens.viz.cli", "debug", "--kernel", "torch", *arguments]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **streams | options)


def test_a_piped_session_with_the_embedded_model() -> None:
    commands = """
        submit "A hacker is" n=2 max_tokens=4
        break BlockCopied
        run
        where
        run
        quit"""
    done = start("--prompt", "When", "--max-tokens", "2", "--seed", "1")
    out, errors = done.communicate(textwrap.dedent(commands).lstrip(), timeout=100)
    assert done.returncode == 0, errors
    assert "(halted before step 0) submit" in out and "B joined" in out
    assert "(halted after plan of step 1) where" in out and "no byte has moved yet" in out
    assert "'A hacker is" in out and "A.0 ended: length" in out and out.endswith("quit\n")


@pytest.mark.triton
def test_ctrl_c_halts_and_a_second_one_at_the_prompt_leaves() -> None:
    # The interpreted kernel: a run that is still going on when the signal comes.
    process = start("--kernel", "triton", "--prompt", "A hacker is", "--max-tokens", "400", "--n", "8")
    assert process.stdin and process.stdout
    process.stdin.write("run\n")
    process.stdin.flush()
    seen = ""
    os.set_blocking(process.stdout.fileno(), True)
    while not seen.endswith("run\n"):
        seen += process.stdout.read(1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    while seen.count("(halted ") < 2:
        seen += process.stdout.read(1)
    assert "A.0 +" in seen
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
