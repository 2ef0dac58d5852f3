"""The workload of the eviction lab: run a policy on it, and count what its event log says.

    python workload.py eviction.py run.kvtrace 20

runs the class `Eviction` of a student's file for at most 20 seconds and records the run. The grader does that in a
process of its own.
"""

import faulthandler
import importlib.util
import random
import sys
import traceback
import warnings
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

from msgspec import structs

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.events import Event
from pagelens.engine.kvtrace import TraceWriter
from pagelens.engine.policies import DefaultPolicy, EvictionView
from pagelens.engine.runner import ScriptedRunner

BLOCK_SIZE = 4
NUM_BLOCKS = 32
NUM_REQUESTS = 240
MISTAKE = 3
"""Exit code of a run that the student's code broke."""


def prompts() -> list[list[int]]:
    """Three documents of 16 tokens with a short question each, and long prompts that never come again."""
    numbers = random.Random(1)
    documents = [list(range(100 * number, 100 * number + 16)) for number in (1, 2, 3)]
    result = []
    for number in range(NUM_REQUESTS):
        own = 10_000 + 100 * number
        if numbers.random() < 0.45:
            result.append(numbers.choice(documents) + list(range(own, own + 3)))
        else:
            result.append(list(range(own, own + 24)))
    return result


def build(policy: str) -> Engine:
    """The engine of the lab: no model, one request at a time."""
    config = EngineConfig(
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=NUM_BLOCKS,
        max_model_len=64,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        policy=policy,
    )
    return Engine(config, runner=ScriptedRunner(lambda sequence, _: 1_000_000 + sequence.num_tokens))


def serve(engine: Engine, writer: TraceWriter | None = None) -> list[Event]:
    """Serve all prompts, each when the one before has ended; return the events."""
    for prompt in prompts():
        engine.add_request(prompt, SamplingParams(max_tokens=4))
        while engine.has_work:
            engine.step()
            if writer is not None:
                writer.drain()
    return engine.log.read(0) or []


def hit_rate(events: list[Event]) -> float:
    """Share of all prompt tokens that were found in the cache."""
    lookups = [event for event in events if isinstance(event, ev.PrefixLookup)]
    return sum(event.hit_tokens for event in lookups) / max(1, sum(event.num_tokens for event in lookups))


class Replay(DefaultPolicy):
    """Makes the choices that a log records; `choices` is consumed."""

    choices: ClassVar[list[int]] = []

    def choose_eviction(self, cached: EvictionView) -> int:
        """The next recorded choice, or the oldest block when there is none left."""
        return self.choices.pop(0) if self.choices else next(iter(cached))


class Oracle(DefaultPolicy):
    """Knows the future: evicts the block whose content is needed last, or never (Belady, 1966).

    It looks into the engine, which a policy cannot do from its view. It is here to say what could be reached at most.
    """

    engine: ClassVar[Engine]
    uses: ClassVar[dict[tuple[int, ...], list[int]]]

    def choose_eviction(self, cached: EvictionView) -> int:
        """Of the blocks needed at the same time, the one released first: the tail of a chain."""
        return max(cached, key=self._next_use)

    def _next_use(self, block: int) -> int:
        content = tuple(self.engine.manager.cache.by_block[block].token_ids)
        now = max(request.arrival for request in self.engine.requests.values())
        return next((use for use in self.uses.get(content, []) if use > now), NUM_REQUESTS)


def best_hit_rate() -> float:
    """The hit rate of the oracle."""
    uses: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts()):
        for start in range(0, len(prompt) - BLOCK_SIZE + 1, BLOCK_SIZE):
            uses[tuple(prompt[start : start + BLOCK_SIZE])].append(number)
    Oracle.uses, Oracle.engine = uses, build(f"{__name__}:Oracle")
    return hit_rate(serve(Oracle.engine))


def same_story(log: list[Event]) -> bool:
    """Whether the engine, given the recorded choices, writes this very log: then nobody else has written into it.

    A policy decides and the engine does the rest, so with the same choices all else must be equal but the times.
    """
    Replay.choices = [event.block for event in log if isinstance(event, ev.BlockEvicted)]
    replayed = serve(build(f"{__name__}:Replay"))
    return [_timeless(event) for event in log] == [_timeless(event) for event in replayed]


def _timeless(event: Event) -> dict[str, object]:
    return {name: value for name, value in structs.asdict(event).items() if name != "t" and not name.endswith("_ns")}


def main() -> int:
    """Run a student's file: arguments are the file, the recording to write, the time limit in seconds."""
    student, target, limit = Path(sys.argv[1]).resolve(), sys.argv[2], float(sys.argv[3])
    faulthandler.dump_traceback_later(limit, exit=True)
    try:
        spec = importlib.util.spec_from_file_location("student", student)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["student"] = module
        spec.loader.exec_module(module)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine = build("student:Eviction")
            with TraceWriter(target, engine.log) as writer:
                serve(engine, writer)
    except BaseException as error:  # a student's sys.exit() as well
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(student)]
        place = f" (line {lines[-1]})" if lines else ""
        print(f"{type(error).__name__}: {error}{place}", file=sys.stderr)
        return MISTAKE
    nonsense = [str(warning.message) for warning in caught if "which is not cached" in str(warning.message)]
    if nonsense:
        print(f"{len(nonsense)} times: {nonsense[0]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
