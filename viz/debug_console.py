"""The debugger in a terminal: `pagelens debug`.

(halted before step 0) submit "A hacker is" n=2
A joined
(halted before step 0) break BlockCopied
breakpoint 1: BlockCopied
(halted before step 0) run
breakpoint 1, BlockCopied: A.0 writes into block 0, which others hold: it is copied to 1 before the launch, ...
(halted after plan of step 1) where

Commands come from the keyboard or a pipe. The engine stands whenever the console asks; Ctrl-C halts one that runs.
"""

import cmd
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pagelens.engine import EngineLoop, PagelensError, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.debugger import Debugger
from pagelens.engine.event_names import KINDS
from pagelens.engine.events import Event, Phase
from pagelens.engine.sampling_params import NUMBERS

from .event_sentences import line, sentence
from .memory_text import block, overview


class DebugConsole(cmd.Cmd):
    """Reads commands and prints answers. `loop` has been started; it is halted first.

    `echo` repeats each command, so that the output of a piped session reads like one typed.
    """

    intro = "Pagelens debugger. `help` lists the commands, `help run` explains one, `quit` ends."
    doc_header = "commands"

    def __init__(self, loop: EngineLoop, echo: bool = False, **streams: Any) -> None:
        super().__init__(**streams)
        self.loop = loop
        self.debugger = Debugger(loop)
        self.echo = echo
        self.debugger.halt()

    @property
    def prompt(self) -> str:  # type: ignore[override]
        """Where the engine is."""
        return f"({self.debugger.position}) "

    def run(self) -> None:
        """Read commands until `quit`, the end of the input, or Ctrl-C at the prompt."""
        try:
            self.cmdloop()
        except KeyboardInterrupt:
            self.say("")

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self.stdout, flush=True)

    # moving

    def do_run(self, _: str) -> None:
        """run: go on until a breakpoint, or until nothing is left to do. Ctrl-C halts."""
        self._move(self.debugger.run)

    def do_until(self, condition: str) -> None:
        """until CONDITION: go on until the next event that matches, as in `until BlockEvicted`."""
        self._move(lambda: self.debugger.run_until(condition))

    def do_token(self, sequence: str) -> None:
        """token A.0: go on until this sequence has its next token."""
        self._move(lambda: self.debugger.run_to_token(sequence))

    def do_step(self, _: str) -> None:
        """step: one whole step, or the rest of the one in which the engine stands."""
        self._move(self.debugger.step)

    def do_phase(self, _: str) -> None:
        """phase: to the end of the next phase (plan, launch, commit)."""
        self._move(self.debugger.next_phase)

    def do_halt(self, _: str) -> None:
        """halt: stand still. While the engine runs, Ctrl-C does it; at this prompt it stands already."""
        self.debugger.halt()
        self.say(self.debugger.position)

    # breakpoints

    def do_break(self, condition: str) -> None:
        """break CONDITION: halt at the end of every phase with an event that matches. Without one: list them.

        break BlockCopied                        break block == 17
        break ref_count > 2 and request == "A"   break RequestPreempted or free < 3
        """
        if not condition:
            return self.do_breakpoints("")
        point = self.debugger.break_on(condition)
        self.say(f"breakpoint {point.number}: {point.condition.text}")

    def do_breakpoints(self, _: str) -> None:
        """breakpoints: list them, with how often each has matched."""
        for point in self.debugger.breakpoints:
            self.say(str(point))
        if not self.debugger.breakpoints:
            self.say("there is no breakpoint")

    def do_delete(self, number: str) -> None:
        """delete 1: forget a breakpoint."""
        self.debugger.remove(_number(number, "breakpoint"))

    def do_disable(self, number: str) -> None:
        """disable 1: switch a breakpoint off."""
        self.debugger.enable(_number(number, "breakpoint"), False)

    def do_enable(self, number: str) -> None:
        """enable 1: switch a breakpoint on."""
        self.debugger.enable(_number(number, "breakpoint"))

    # looking

    def do_where(self, _: str) -> None:
        """where: the blocks, a line per sequence with its block table, and what is pending."""
        for text in [self.debugger.position, *overview(self.loop.log.snapshot(), self.loop.queued)]:
            self.say(text)

    def do_block(self, argument: str) -> None:
        """block 17: state, holders, content, and how it came to that."""
        picture, number = self.loop.log.snapshot(), _number(argument, "block")
        if not 0 <= number < picture.num_blocks:
            raise PagelensError(f"there is no block {number}: the pool has 0 to {picture.num_blocks - 1}")
        for text in block(picture, number):
            self.say(text)
        if number in picture.last_touched:
            self._print_causes(picture.last_touched[number])

    def do_events(self, argument: str) -> None:
        """events 20: the newest events (10 without a number)."""
        count = _number(argument or "10", "count of events")
        for event in self._events(self.loop.log.next_seq - count):
            self.say(line(event))

    def do_why(self, argument: str) -> None:
        """why 9724: the event, and what it follows from, back to its first cause."""
        self._print_causes(_number(argument, "event"))

    # requests

    def do_submit(self, argument: str) -> None:
        """submit "A hacker is" n=2 max_tokens=20: send a request; the other parameters as in SamplingParams.

        In the middle of a step it joins when the step is over.
        """
        prompt, *options = _split(argument) or [""]
        request = self.loop.submit(prompt, _sampling_params(options))
        self.say(f"{request} will join when this step is over" if request in self.loop.queued else f"{request} joined")

    def do_abort(self, request: str) -> None:
        """abort A: withdraw a request; in the middle of a step, when that is over."""
        self.loop.abort(request)
        later = self.loop.halted_after is not Phase.COMMIT
        self.say(f"{request} will end when this step is over" if later else f"{request} ended")

    def do_quit(self, _: str) -> bool:
        """quit: leave; what is unfinished is withdrawn."""
        return True

    # how cmd.Cmd is to behave

    def do_EOF(self, _: str) -> bool:
        """The end of the input."""
        self.say("")
        return True

    def get_names(self) -> list[str]:
        """What `help` and completion offer: every command but the end of the input."""
        return [name for name in super().get_names() if name != "do_EOF"]

    def completedefault(self, text: str, *ignored: Any) -> list[str]:
        """Event kinds, for conditions."""
        return sorted(kind for kind in KINDS if kind.startswith(text))

    def precmd(self, line: str) -> str:
        """Echo a piped command."""
        if self.echo and line != "EOF":
            self.say(line)
        return line

    def onecmd(self, line: str) -> bool:
        """Carry out a command; a mistake is told and costs nothing, `#` begins a comment."""
        if line.lstrip().startswith("#"):
            return False
        try:
            return bool(super().onecmd(line))
        except PagelensError as error:
            self.say(f"  {error}")
            return False

    def emptyline(self) -> bool:
        """Nothing asked, nothing done."""
        return False

    def default(self, line: str) -> None:
        """An unknown command."""
        raise PagelensError(f"there is no command {line.split()[0]!r}: `help` lists them")

    # helpers

    def _move(self, move: Callable[[], None]) -> None:
        """Set the engine going, wait until it stands (Ctrl-C: make it), tell what happened."""
        first = self.loop.log.next_seq
        try:
            move()
            self.debugger.wait()
        except KeyboardInterrupt:
            self.say("")
        is_over = not self.loop.halted
        if is_over:
            self.debugger.halt()
        self._tell(first)
        if is_over and not self.loop.engine.has_work:
            self.say("nothing is left to do")

    def _tell(self, first: int) -> None:
        grown: dict[str, list[str]] = {}
        for event in self._events(first):
            if isinstance(event, ev.TokensGenerated):
                for name, text, token in zip(event.sequences, event.texts, event.token_ids, strict=True):
                    grown.setdefault(name, []).append(text or f"[{token}]")
            elif isinstance(event, ev.SequenceFinished | ev.StepFailed | ev.RequestAborted):
                grown.setdefault("", []).append(sentence(event))
        endings = grown.pop("", [])
        for name, texts in grown.items():
            self.say(f"{name} +{len(texts)}: {''.join(texts)!r}")
        for ending in endings:
            self.say(ending)
        for hit in self.debugger.hits:
            cause = f"breakpoint {hit.breakpoint.number}" if hit.breakpoint else "there"
            self.say(f"{cause}, {type(hit.event).__name__} {hit.event.seq}: {sentence(hit.event)}")

    def _print_causes(self, seq: int) -> None:
        """Follow the causes; the step's plan and launch are what everything in it follows from, so they come last."""
        events = {event.seq: event for event in self._events(0)}
        if seq not in events:
            held = f"{min(events)} to {max(events)}" if events else "none"
            raise PagelensError(f"there is no event {seq}; events held: {held}")
        arrow = ""
        while seq in events:
            self.say(f"{arrow}{line(events[seq])}")
            seq, arrow = events[seq].cause, "<- "

    def _events(self, first: int) -> list[Event]:
        log = self.loop.log
        return log.read(max(first, log.oldest_seq)) or []


def run_console(loop: EngineLoop, requests: list[tuple[str | list[int], SamplingParams]]) -> None:
    """Start the loop halted, with these requests waiting, debug it from the terminal or a pipe, stop it."""
    loop.start()
    try:
        console = DebugConsole(loop, echo=not sys.stdin.isatty())
        loop.submit_all(requests)
        console.run()
    finally:
        loop.stop()


def _number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PagelensError(
            f"{text!r} is no number of a {what}" if text else f"which {what}? Give its number"
        ) from None


def _split(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError as error:
        raise PagelensError(f'cannot read this: {error}; a prompt is quoted, as in submit "A hacker is"') from None


def _sampling_params(options: list[str]) -> SamplingParams:
    """From name=number pairs. Raises PagelensError for anything else."""
    known = [own.name for own in fields(SamplingParams) if own.type in NUMBERS]
    values: dict[str, int | float] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in known:
            raise PagelensError(
                f"{option!r} is no option like n=2 (quote a prompt of several words); options are: {', '.join(known)}"
            )
        values[name] = _option(name, value)
    return SamplingParams(**values)  # type: ignore[arg-type]


def _option(name: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise PagelensError(f"{name} is {text!r}, but has to be a number, as in {name}=2")
