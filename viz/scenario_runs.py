"""ScenarioRuns: each variant of each scenario is run once, on an engine of its own, and kept for whoever asks next.

    one run   | header | note | events of step 0 | note | note | events of step 1 | ...       grows, a line each
                 ^ a reader that came early       ^ one that came late: nobody runs anything twice

The lines are those of a `.kvtrace`, and between them notes for the player, each before the events that it is about:

    {"note": "moment", "question": 0, "seq": 14, "answers": [2], "shown": 20}     stop before event 14; 20 shows it
    {"note": "moment", "tour": 1, "seq": 16, "blocks": [0, 1]}                    stop after event 16
    {"note": "moment", "picture": true, "seq": 16}                                the telling moment of the scenario
    {"note": "waiting"}   {"note": "failed", "message": "..."}                    another run goes on; this one broke
"""

import threading
from pathlib import Path
from typing import Any

import msgspec

from pagelens.engine import PagelensError
from pagelens.engine.breakpoints import Follower
from pagelens.engine.kvtrace import encode_event

from .moments import Moments
from .scenario import Scenario, ScenarioError, setup_of
from .scenario_engine import engine_for, steps_of
from .scenario_file import read_scenario

MOST_STEPS, MOST_EVENTS = 5000, 250_000


class ScenarioRun:
    """One recording, while it is made and after. `parts` are bytes of whole lines; they grow until it `is_over`."""

    def __init__(self, scenario: Scenario, variant: str, kernel: str) -> None:
        self.parts: list[bytes] = []
        self.is_over = False
        self.error = ""
        self.num_steps = self.num_events = 0
        self.moments = Moments(scenario, variant)
        self._scenario = scenario
        self._variant = variant
        self._kernel = kernel

    def make(self, turn: threading.Lock) -> None:
        """Run it, once `turn` is free: an instructor's thirty students must not start thirty engines."""
        try:
            if not turn.acquire(blocking=False):
                self._note(note="waiting")
                turn.acquire()
            try:
                self._run()
            finally:
                turn.release()
        except PagelensError as error:
            self.error = str(error)
        except Exception as error:  # whatever a model or a policy raises: the player says it
            self.error = f"{type(error).__name__}: {error}"
        finally:
            if self.error:
                self._note(note="failed", message=self.error)
            self.is_over = True

    def trace(self) -> bytes:
        """The recording without the notes."""
        lines = b"".join(self.parts).splitlines(keepends=True)
        return b"".join(line for line in lines if not line.startswith(b'{"note"'))

    def _run(self) -> None:
        setup = setup_of(self._scenario, self._variant)
        engine = engine_for(self._scenario, setup, self._kernel)
        header = msgspec.structs.replace(engine.log.header, run=f"{self._scenario.name}:{self._variant}")
        self.parts.append(msgspec.json.encode(header) + b"\n")
        follower = Follower(engine.log)
        for _ in steps_of(engine, self._scenario):
            facts = follower.new_facts()
            for moment in self.moments.find(facts):
                self._note(**moment)
            self.parts.append(b"".join(encode_event(fact.event) + b"\n" for fact in facts))
            self.num_steps, self.num_events = engine.num_steps, engine.log.next_seq
            if self.num_steps > MOST_STEPS or self.num_events > MOST_EVENTS:
                raise ScenarioError(
                    f"it has not ended after {self.num_steps} steps and {self.num_events} events, allowed are "
                    f"{MOST_STEPS} and {MOST_EVENTS}: fewer requests, or fewer max_tokens"
                )

    def _note(self, **fields: Any) -> None:
        self.parts.append(msgspec.json.encode(fields) + b"\n")


def finished_run(scenario: Scenario, variant: str, kernel: str) -> ScenarioRun:
    """A run made here and now. Raises ScenarioError if it fails."""
    run = ScenarioRun(scenario, variant, kernel)
    run.make(threading.Lock())
    if run.error:
        raise ScenarioError(f"{variant or scenario.name}: {run.error}")
    return run


class ScenarioRuns:
    """All scenarios of some folders, and their runs. `kernel` is used where a scenario leaves it to the machine."""

    def __init__(self, folders: tuple[Path, ...], kernel: str = "auto") -> None:
        self._folders = folders
        self._kernel = kernel
        self._runs: dict[tuple[str, str], tuple[bytes, ScenarioRun]] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def paths(self) -> dict[str, Path]:
        """Name -> file; a later folder goes before an earlier one."""
        return {path.stem: path for folder in self._folders for path in sorted(folder.glob("*.toml"))}

    def read(self, name: str) -> Scenario:
        """Raises ScenarioError if there is none of this name, or its file is wrong."""
        paths = self.paths()
        if name not in paths:
            raise ScenarioError(f"there is no scenario {name!r}, but {', '.join(paths) or 'none at all'}")
        return read_scenario(paths[name])

    def run(self, name: str, variant: str) -> ScenarioRun:
        """The run, begun now if nobody has asked for it since its file was written. Raises ScenarioError."""
        scenario = self.read(name)
        setup_of(scenario, variant)
        with self._lock:
            written = msgspec.msgpack.encode(scenario)
            kept, run = self._runs.get((name, variant), (b"", None))
            if run is None or kept != written or (run.is_over and run.error):
                run = ScenarioRun(scenario, variant, self._kernel)
                self._runs[name, variant] = (written, run)
                threading.Thread(target=run.make, args=(self._turn,), daemon=True).start()
        return run
