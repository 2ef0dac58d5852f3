"""Lesson 4: continuous batching and chunked prefill. Who is computed in this step, and how much of it.

python tutorials/lessons/04_continuous_batching.py [--pictures DIR]
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from pictures import timeline
from telling import tell

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.events import Event
from pagelens.engine.runner import ScriptedRunner

SEATS = 4
LENGTHS = [3, 12, 5, 4, 10, 2, 6, 3]
"""Tokens that eight answers turn out to have."""


def scripted_engine(budget: int = 64, num_blocks: int = 64, seats: int = SEATS) -> Engine:
    """The real scheduler with a script for a model; blocks of 4, no prefix cache."""
    config = EngineConfig(
        block_size=4,
        num_gpu_blocks_override=num_blocks,
        max_model_len=256,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
    )
    return Engine(config, runner=ScriptedRunner(lambda sequence, _: sequence.num_tokens))


def add(engine: Engine, prompt_length: int, answer_length: int) -> None:
    """Queue a request."""
    engine.add_request([7] * prompt_length, SamplingParams(max_tokens=answer_length))


def finish(engine: Engine) -> None:
    """Run until nothing is left."""
    while engine.has_work:
        engine.step()


def events_of(engine: Engine) -> list[Event]:
    """All events of the run."""
    return engine.log.read(0) or []


def plans(events: Iterable[Event]) -> list[ev.StepPlanned]:
    """The plan of every step."""
    return [event for event in events if isinstance(event, ev.StepPlanned)]


@cache
def static_run() -> list[Event]:
    """Eight requests, four at a time; the next four start when all of the first have ended."""
    engine = scripted_engine()
    for start in range(0, len(LENGTHS), SEATS):
        for length in LENGTHS[start : start + SEATS]:
            add(engine, 4, length)
        finish(engine)
    return events_of(engine)


@cache
def continuous_engine() -> Engine:
    """The same requests, all submitted at once."""
    engine = scripted_engine()
    for length in LENGTHS:
        add(engine, 4, length)
    finish(engine)
    return engine


def continuous_run() -> list[Event]:
    """What that engine did."""
    return events_of(continuous_engine())


@dataclass
class Use:
    """How well the seats of a run were used."""

    steps: int
    idle: int

    @property
    def share_idle(self) -> float:
        """Idle seats of all seats."""
        return self.idle / (self.steps * SEATS)


def use_of(events: list[Event]) -> Use:
    """Count the seats that were empty, step by step."""
    seats = [SEATS - len(plan.sequences) for plan in plans(events)]
    return Use(len(seats), sum(seats))


def static_and_continuous() -> tuple[Use, Use]:
    """Eight answers on four seats

    Returns the use of the seats for a static batch and for a continuous one.
    """
    static, continuous = use_of(static_run()), use_of(continuous_run())
    print(f"Answers of {LENGTHS} tokens.")
    for name, use in (("static", static), ("continuous", continuous)):
        print(f"{name:11} {use.steps:3} steps, {use.idle:3} of {use.steps * SEATS} seats idle ({use.share_idle:.0%})")
    return static, continuous


def who_waits_for_what() -> list[ev.StepPlanned]:
    """Why does the next one wait?

    Returns the plans in which the reason changed.
    """
    changed: list[ev.StepPlanned] = []
    for plan in plans(continuous_run()):
        if not changed or (plan.why, plan.blocked) != (changed[-1].why, changed[-1].blocked):
            changed.append(plan)
            waiting = f"{plan.blocked} {plan.why}" if plan.blocked else plan.why
            print(f"step {plan.step:2}: computes {' '.join(plan.sequences):16} {waiting}")
    return changed


@cache
def long_prompt(budget: int) -> list[Event]:
    """Three texts are being written; in step 4 a prompt of 60 tokens arrives."""
    engine = scripted_engine(budget)
    for _ in range(3):
        add(engine, 4, 14)
    for _ in range(4):
        engine.step()
    add(engine, 60, 4)
    finish(engine)
    return events_of(engine)


def whole_or_in_chunks() -> dict[int, list[int]]:
    """A prompt of 60 tokens comes in between

    Returns budget -> tokens computed in each step.
    """
    sizes = {}
    for budget in (64, 16):
        events = long_prompt(budget)
        sizes[budget] = [sum(plan.num_tokens) for plan in plans(events)]
        chunks = [e.num_tokens for e in events if isinstance(e, ev.SequenceScheduled) and e.sequence == "D.0"]
        print(f"budget {budget}: D.0 is computed as {chunks}")
        print(f"   tokens in each step: {sizes[budget]}")
    return sizes


def one_rule() -> list[ev.SequenceScheduled]:
    """One rule: how far is each, and how much of the rest fits?

    Returns what was scheduled in steps 3 to 8.
    """
    events = [e for e in long_prompt(16) if isinstance(e, ev.SequenceScheduled) and 3 <= e.step <= 8]
    for step in range(3, 9):
        row = [f"{e.sequence} {e.start}+{e.num_tokens} {e.why}" for e in events if e.step == step]
        print(f"step {step}: " + ", ".join(row[:1] + row[2:]))
    return events


def never_starved() -> tuple[int, int]:
    """Long prompts without end

    Returns the largest gap in steps between two tokens of the text that runs, and the prompts finished meanwhile.
    """
    engine = scripted_engine(budget=16, num_blocks=200)
    add(engine, 4, 40)
    while not any(isinstance(event, ev.SequenceFinished) and event.sequence == "A.0" for event in events_of(engine)):
        if len(engine.scheduler.waiting) < 2:
            add(engine, 50, 1)
        engine.step()
    written = [e.step for e in events_of(engine) if isinstance(e, ev.TokensGenerated) and "A.0" in e.sequences]
    gap = max(after - before for before, after in pairwise(written))
    done = sum(isinstance(event, ev.SequenceFinished) for event in events_of(engine)) - 1
    print(f"A.0 wrote {len(written)} tokens while {done} prompts of 50 tokens were computed beside it.")
    print(f"Largest gap between two of its tokens: {gap} step.")
    return gap, done


def static_timeline() -> str:
    """Two batches."""
    title = "Static batching: four rows run until the longest ends; then the other four. Much of the picture is empty."
    return timeline(static_run(), title)


def continuous_timeline() -> str:
    """A seat is taken again in the next step."""
    title = "Continuous batching: whenever a row ends, a waiting row begins in the next step."
    return timeline(continuous_run(), title, steps=use_of(static_run()).steps)


def whole_timeline() -> str:
    """One step of 63 tokens."""
    return timeline(long_prompt(64), "With a budget of 64 the prompt of D.0 is one cell of 60 tokens, in step 4.")


def chunked_timeline() -> str:
    """Five steps of at most 16."""
    return timeline(long_prompt(16), "With a budget of 16 the prompt of D.0 is five cells, while the others write on.")


PARTS = [
    static_and_continuous,
    who_waits_for_what,
    whole_or_in_chunks,
    one_rule,
    never_starved,
]
PICTURES = [static_timeline, continuous_timeline, whole_timeline, chunked_timeline]

if __name__ == "__main__":
    tell(PARTS, PICTURES)
