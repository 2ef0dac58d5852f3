"""Lesson 2: copy-on-write. Three answers share a prompt that ends in the middle of a block.

python tutorials/lessons/02_copy_on_write.py [--pictures DIR]
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module

import torch
from pictures import colours_of, memory
from telling import tell

from pagelens.engine import LLM, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.event_log import EventLog
from pagelens.engine.events import BlockState, Event
from pagelens.engine.memory_map import MemoryMap

PROMPT = "A hacker is a person who"
BLOCK_SIZE = 4


def without_permission() -> tuple[float, float]:
    """A fork that shares everything, in the cache of lesson 1

    Returns the key that each branch finds at its own position.
    """
    cache = import_module("01_on_demand_paging").PagedKVCache(num_blocks=4, block_size=4, head_dim=1)
    cache.allocate_sequence("A")
    for position in range(6):
        cache.append_token("A", torch.tensor([position]), torch.tensor([position]))
    cache.tables["B"], cache.lengths["B"] = list(cache.tables["A"]), cache.lengths["A"]
    cache.append_token("A", torch.tensor([100]), torch.tensor([100]))
    cache.append_token("B", torch.tensor([200]), torch.tensor([200]))
    found = {name: cache.get_keys_values(name)[0][6].item() for name in "AB"}
    print(f"Both tables are {cache.tables['A']}. A writes 100 at position 6, then B writes 200 at its own.")
    print(f"A now reads {found['A']:.0f}, B reads {found['B']:.0f}.")
    return found["A"], found["B"]


@dataclass
class Run:
    """What one request left behind. `saved` is the share of table entries that point to a block counted already."""

    log: EventLog
    events: list[Event]
    texts: list[str]
    saved: float
    last: MemoryMap

    def copies(self) -> list[ev.BlockCopied]:
        """The copies, in order."""
        return [event for event in self.events if isinstance(event, ev.BlockCopied)]

    def after(self, step: int, kind: type[Event]) -> MemoryMap:
        """The picture after the first event of this kind in a step."""
        picture = MemoryMap(num_blocks=self.last.num_blocks, block_size=BLOCK_SIZE)
        for event in self.events:
            picture.apply(event)
            if event.step == step and isinstance(event, kind):
                break
        return picture


def run(prompt: str, params: SamplingParams) -> Run:
    """Serve one request and keep its events."""
    llm = LLM(
        kernel="torch",
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=40,
        enable_prefix_caching=False,
        log_events=True,
    )
    result = llm.generate(prompt, params)[0]
    log = llm.engine.log
    picture, entries, used = MemoryMap(num_blocks=40, block_size=BLOCK_SIZE), 0, 0
    events = log.read(0) or []
    for event in events:
        picture.apply(event)
        if isinstance(event, ev.TokensWritten):
            entries += sum(len(view.table) for view in picture.sequences.values())
            used += picture.count(BlockState.USED)
    return Run(log, events, [answer.text for answer in result.outputs], 1 - used / entries, picture)


@cache
def three_samples() -> Run:
    """Three answers of three tokens to a prompt of six."""
    return run(PROMPT, SamplingParams(n=3, max_tokens=4, temperature=0.9, seed=2, ignore_eos=True))


def three_answers() -> Run:
    """The engine, n = 3

    Returns the run.
    """
    answers = three_samples()
    length = answers.last.sequences["A.0"].num_prompt_tokens
    print(f"{PROMPT!r} has {length} tokens: one full block of {BLOCK_SIZE}, and {length % BLOCK_SIZE} in the next.")
    for number, text in enumerate(answers.texts):
        print(f"A.{number}:{text}")
    return answers


def the_events() -> list[Event]:
    """From the fork to the next plan, in the words of the log

    Returns the events shown.
    """
    told: dict[type[Event], str] = {
        ev.SequenceForked: "{0.child} continues {0.parent}",
        ev.BlockShared: "block {0.block} also in {0.sequence}, ref_count {0.ref_count}",
        ev.SequenceScheduled: "{0.sequence}: {0.num_tokens} token from position {0.start}",
        ev.BlockAllocated: "block {0.block} to {0.sequence}, ref_count {0.ref_count}",
        ev.BlockCopied: "block {0.source} to block {0.destination} for {0.sequence}",
        ev.BlockReleased: "block {0.block} by {0.sequence}, ref_count {0.ref_count}",
    }
    events = [e for e in three_samples().events if (e.step, e.phase) in ((0, "commit"), (1, "plan"))]
    shown = [event for event in events if type(event) in told]
    for event in shown:
        text = told[type(event)].format(event)
        print(f"{event.seq:>3} {type(event).__name__:18}{text:34}{event.why:18} cause {event.cause:>2}")
    return shown


def chain_of_causes() -> list[Event]:
    """Why was block 1 copied? Follow the causes

    Returns the chain, from the copy back to the request.
    """
    by_seq = {event.seq: event for event in three_samples().events}
    event: Event | None = three_samples().copies()[0]
    chain = []
    while event is not None:
        chain.append(event)
        print(f"{event.seq:>3} step {event.step} {event.phase:7}{type(event).__name__:18} because: {event.why}")
        event = by_seq.get(event.cause)
    return chain


def who_keeps_the_source() -> dict[int, int]:
    """How many copies, by the length of the prompt

    Returns prompt length -> copies made for n = 3.
    """
    words = (PROMPT + " can program").split()
    copies = {}
    for count in range(3, 8):
        result = run(" ".join(words[:count]), SamplingParams(n=3, max_tokens=2, temperature=0, ignore_eos=True))
        length = result.last.sequences["A.0"].num_prompt_tokens
        copies[length] = len(result.copies())
        print(f"{length} tokens, {length % BLOCK_SIZE} in the last block: {copies[length]} copies for 3 answers")
    return copies


@cache
def beams() -> Run:
    """Four beams of twelve tokens."""
    return run(PROMPT, SamplingParams(beam_width=4, max_tokens=12, temperature=0, ignore_eos=True))


def beams_copy_all_along() -> tuple[Run, int]:
    """Beams fork again and again

    Returns the run, and how many tokens an engine that shares only full blocks would compute again.
    """
    result = beams()
    forks = [event for event in result.events if isinstance(event, ev.SequenceForked)]
    scheduled = {event.seq: event for event in result.events if isinstance(event, ev.SequenceScheduled)}
    again = sum(scheduled[copy.cause].start % BLOCK_SIZE for copy in result.copies())
    steps = [copy.step for copy in result.copies()]
    print(f"4 beams, 12 tokens: {len(forks)} forks and {len(steps)} copies, in steps {sorted(set(steps))}.")
    print(f"The copied blocks held {again} tokens. Without copies these would be computed again.")
    print(f"Blocks saved by sharing: {result.saved:.0%} with 4 beams, {three_samples().saved:.0%} with 3 samples.")
    return result, again


def after_the_fork() -> str:
    """Three tables, two blocks."""
    title = "After the fork: three block tables with the same two blocks; the second is half full."
    return memory(three_samples().after(0, ev.StepCommitted), title, blocks=range(4))


def in_the_plan() -> str:
    """Two tables point elsewhere, and no byte has moved."""
    picture = three_samples().after(1, ev.StepPlanned)
    title = "In the plan: A.0 and A.1 point to new blocks, two copies are noted, A.2 keeps the source."
    return memory(picture, title, blocks=range(4))


def written() -> str:
    """Each branch has written its own token."""
    title = "After the launch: three different tokens at the same position, in three blocks."
    return memory(three_samples().after(1, ev.TokensWritten), title, blocks=range(4))


def beam_tables() -> str:
    """Four beams in the middle of the search."""
    picture = beams().after(8, ev.TokensWritten)
    title = "Four beams at step 8: they share three blocks of text, and each writes into one of its own."
    running = [view.sequence for view in picture.sequences.values() if view.status == "running"]
    used = [block for block, count in enumerate(picture.ref_count) if count]
    return memory(picture, title, blocks=used, colours=colours_of(running))


PARTS = [
    without_permission,
    three_answers,
    the_events,
    chain_of_causes,
    who_keeps_the_source,
    beams_copy_all_along,
]
PICTURES = [after_the_fork, in_the_plan, written, beam_tables]

if __name__ == "__main__":
    tell(PARTS, PICTURES)
