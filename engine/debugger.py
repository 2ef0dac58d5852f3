"""Debugger: breakpoints and one thing at a time, over an EngineLoop.

    debugger = Debugger(EngineLoop(engine).start())
    debugger.break_on("BlockCopied and block == 17")
    debugger.run()
    debugger.wait()                         # the engine stands after the plan in which 17 is to be copied
    debugger.hits[0].event                  # BlockCopied 17 -> 25: no byte has moved yet
    debugger.loop.log.snapshot()            # the whole picture, the copy pending
    debugger.next_phase()                   # launch: now it has

        plan            launch            commit
    ----------- | ----------------- | -------------- |     the engine can stand at each bar, and nowhere else
      decided       data moved,         tokens
      on paper      model computed      appended

Whoever asks is never the thread that halts: the rest of the process goes on, and requests sent meanwhile join when the
step is over.
"""

from .breakpoints import Breakpoint, Hit
from .condition import Condition
from .engine_loop import EngineLoop
from .errors import PagelensError
from .events import Phase


class Debugger:
    """Drives one loop. Several debuggers of a loop see the same breakpoints.

    Raises PagelensError if the engine keeps no events, which are all that a debugger sees.
    """

    def __init__(self, loop: EngineLoop) -> None:
        if not loop.log.enabled:
            raise PagelensError("this engine keeps no events, and a debugger sees nothing else: use log_events=True")
        self.loop = loop

    # breakpoints

    def break_on(self, condition: str = "", **values: int | str) -> Breakpoint:
        """Halt at the end of every phase in which an event matches.

        `break_on("BlockCopied and block == 17")` and `break_on(kind="BlockCopied", block=17)` say the same; see
        `condition.py`. Raises ConditionError if it cannot be read or can never match.
        """
        return self.loop.breakpoints.add(_condition(condition, values))

    @property
    def breakpoints(self) -> list[Breakpoint]:
        """All breakpoints, by number."""
        return self.loop.breakpoints.all()

    def remove(self, number: int) -> None:
        """Forget a breakpoint. Raises PagelensError if there is none of this number."""
        self.loop.breakpoints.remove(number)

    def enable(self, number: int, enabled: bool = True) -> None:
        """Switch a breakpoint on or off. Raises PagelensError if there is none of this number."""
        self.loop.breakpoints.enable(number, enabled)

    @property
    def hits(self) -> list[Hit]:
        """The events for which the engine stands now, each with its breakpoint; empty if for another reason."""
        return list(self.loop.breakpoints.hits)

    # moving

    def halt(self) -> None:
        """Stand still after the current step."""
        self.loop.halt()

    def step(self) -> None:
        """One whole step, or the rest of the one in which the engine stands. Returns when it stands again."""
        self.loop.step()

    def next_phase(self) -> None:
        """To the end of the next phase. Returns when the engine stands again."""
        self.loop.next_phase()

    def run(self) -> None:
        """Go on, until a breakpoint. Returns at once; `wait` waits."""
        self.loop.run()

    def run_until(self, condition: str = "", **values: int | str) -> None:
        """Go on until the next event that matches: a breakpoint for one halt, whatever brings that about.

        Returns at once. Raises ConditionError if the condition cannot be read or can never match.
        """
        self.loop.run(_condition(condition, values))

    def run_to_token(self, sequence: str) -> None:
        """Go on until `sequence` has its next token, or ends without one. Returns at once.

        Raises PagelensError if there is no such unfinished sequence.
        """
        views = self.loop.log.snapshot().sequences
        unfinished = [name for name, view in views.items() if view.status != "finished"]
        if sequence not in unfinished:
            raise PagelensError(
                f"there is no unfinished sequence {sequence!r}; there are: {', '.join(unfinished) or 'none'}"
            )
        self.run_until("TokensGenerated or SequenceFinished", sequence=sequence)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the engine stands, or has nothing left to do; False if `timeout` seconds passed before."""
        return self.loop.wait_until_still(timeout)

    @property
    def position(self) -> str:
        """Where the engine is, in words."""
        phase, step = self.loop.halted_after, self.loop.engine.num_steps
        if self.loop.failure is not None:
            return "broken down"
        if phase is None:
            return f"running in step {step}" if self.loop.engine.has_work else f"idle before step {step}"
        return f"halted before step {step}" if phase is Phase.COMMIT else f"halted after {phase} of step {step}"


def _condition(text: str, values: dict[str, int | str]) -> Condition:
    """The text and the keywords, joined with `and`."""
    parts = [f"({text})" if values else text] if text.strip() else []
    for name, value in values.items():
        parts.append(str(value) if name == "kind" else f"{name} == {value!r}")
    return Condition(" and ".join(parts))
