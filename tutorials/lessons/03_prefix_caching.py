"""Lesson 3: prefix caching. What a text leaves behind when it has ended, and who finds it.

python tutorials/lessons/03_prefix_caching.py [--pictures DIR]
"""

import random
from dataclasses import dataclass
from functools import cache

from pictures import memory
from telling import tell

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.events import BlockState, Event
from pagelens.engine.policies import DefaultPolicy, EvictionView
from pagelens.engine.runner import ScriptedRunner

SYSTEM = "You explain words in plain English."
FOO, HACK = SYSTEM + " The word is: foo.", SYSTEM + " The word is: hack."
OTHER = "When a program is done, it is not a good idea to ask why it was written."
SIX = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def model_engine(num_blocks: int = 12, policy: str = "") -> Engine:
    """The embedded model with blocks of 4."""
    return Engine(EngineConfig(kernel="torch", block_size=4, num_gpu_blocks_override=num_blocks, policy=policy))


def scripted_engine() -> Engine:
    """The same scheduler, cache and events, with a script for a model: for prompts of token ids."""
    config = EngineConfig(block_size=4, num_gpu_blocks_override=20, max_model_len=64)
    return Engine(config, runner=ScriptedRunner(lambda sequence, _: 1000 + sequence.num_tokens))


def serve(engine: Engine, *prompts: str | list[int], salts: tuple[str, ...] = ()) -> list[ev.PrefixLookup]:
    """Serve prompts that arrive together; return what the prefix cache said to each."""
    start = engine.log.next_seq
    for number, prompt in enumerate(prompts):
        engine.add_request(prompt, SIX, cache_salt=salts[number] if salts else "")
    while engine.has_work:
        engine.step()
    return [event for event in engine.log.read(start) or [] if isinstance(event, ev.PrefixLookup)]


def say(lookups: list[ev.PrefixLookup]) -> None:
    """One line for each look-up."""
    for e in lookups:
        rest = e.num_tokens - e.hit_tokens
        print(f"{e.sequence}: {e.num_tokens} tokens, {e.hit_tokens} found in {e.hit_blocks} blocks, {rest} to compute")


@cache
def two_users() -> tuple[Engine, int, int]:
    """Foo, then hack. Also the seq when the first has ended, and when the second has been planned."""
    engine = model_engine()
    serve(engine, FOO)
    ended = engine.log.next_seq - 1
    serve(engine, HACK)
    events = engine.log.read(0) or []
    planned = next(e.seq for e in events if isinstance(e, ev.TokensWritten) and e.seq > ended)
    return engine, ended, planned


def two_users_engine() -> Engine:
    """The engine that served them."""
    return two_users()[0]


def second_user() -> list[ev.PrefixLookup]:
    """The second user asks about another word

    Returns both look-ups.
    """
    engine, ended, _ = two_users()
    after = engine.log.snapshot(ended)
    print(f"After A: {after.count(BlockState.USED)} blocks used, {after.count(BlockState.CACHED)} cached.")
    lookups = [e for e in engine.log.read(0) or [] if isinstance(e, ev.PrefixLookup)]
    say(lookups)
    return lookups


def the_chain() -> list[ev.BlockSealed]:
    """Hashes that chain

    Returns the events of the sealing.
    """
    engine, _, _ = two_users()
    sealed = [event for event in engine.log.read(0) or [] if isinstance(event, ev.BlockSealed)]
    for event in sealed:
        tokens = engine.log.snapshot(event.seq).sealed_text[event.block]
        parent = event.parent[:6] or "(start)"
        print(f"{event.sequence} entry {event.index}: {event.hash[:6]} after {parent:8}{''.join(tokens)!r}")
    return sealed


def in_one_step() -> tuple[list[ev.PrefixLookup], list[Event]]:
    """Both ask at the same moment

    Returns the look-ups and the events of the first plan.
    """
    engine, common = scripted_engine(), list(range(12))
    lookups = serve(engine, [*common, 101, 102], [*common, 201, 202])
    say(lookups)
    plan = [e for e in engine.log.read(0) or [] if e.step == 0 and e.phase == "plan"]
    shared = [event for event in plan if isinstance(event, ev.BlockShared)]
    print(f"B.0 shares blocks {[event.block for event in shared]} in step 0, before A.0 has computed anything.")
    return lookups, plan


def never_all_of_it() -> list[ev.PrefixLookup]:
    """The very same prompt again

    Returns the second look-up of a prompt of 12 tokens, and of one of 13.
    """
    seconds = []
    for prompt in (list(range(12)), list(range(13))):
        engine = scripted_engine()
        serve(engine, prompt)
        seconds += serve(engine, prompt)
    say(seconds)
    return seconds


def second_turn() -> list[ev.PrefixLookup]:
    """The same user goes on talking

    Returns both look-ups.
    """
    engine = model_engine(20)
    first = serve(engine, FOO)
    conversation = engine.log.snapshot().sequences["A.0"].token_ids
    second = serve(engine, conversation + engine.tokenize(" Thanks. Now another: hack."))
    say(first + second)
    prompt, answer = first[0].num_tokens, len(conversation) - first[0].num_tokens
    print(f"{prompt} tokens of B.0 were A.0's prompt and {answer} its answer.")
    return first + second


def salts() -> list[ev.PrefixLookup]:
    """One prompt, two customers

    Returns the look-ups of a request with the first's salt, and of one with another.
    """
    engine, prompt = scripted_engine(), list(range(14))
    serve(engine, prompt, salts=("customer 1",))
    lookups = serve(engine, prompt, salts=("customer 1",)) + serve(engine, prompt, salts=("customer 2",))
    say(lookups)
    return lookups


class HeadFirst(DefaultPolicy):
    """Evicts what was released last: the heads of chains."""

    def choose_eviction(self, cached: EvictionView) -> int:
        """The last of the cached blocks."""
        return list(cached)[-1]


@cache
def crowded(policy: str = "") -> tuple[list[Event], int, Engine]:
    """Foo, something else that needs room, then hack, in 8 blocks. Also the seq after the second."""
    engine = model_engine(8, policy)
    serve(engine, FOO)
    serve(engine, OTHER)
    seq = engine.log.next_seq - 1
    serve(engine, HACK)
    return engine.log.read(0) or [], seq, engine


def tails_go_first() -> dict[str, tuple[list[int], int]]:
    """Which block goes when room is needed?

    Returns policy -> (entries of A's table that were evicted for B, tokens that C found).
    """
    results = {}
    for name, policy in {"tails first (default)": "", "heads first": f"{__name__}:HeadFirst"}.items():
        events, _, _ = crowded(policy)
        owner = {e.block: e.index for e in events if isinstance(e, ev.BlockSealed) and e.sequence == "A.0"}
        lookups = [e for e in events if isinstance(e, ev.PrefixLookup)]
        evicted = [e.block for e in events if isinstance(e, ev.BlockEvicted) and e.seq < lookups[2].seq]
        results[name] = [owner[block] for block in evicted], lookups[2].hit_tokens
        print(f"{name}: entries {results[name][0]} of A.0's chain go; C.0 finds {results[name][1]} tokens")
    return results


@dataclass
class Load:
    """What 300 requests cost."""

    asked: int
    computed: int
    found: int
    steps: int
    peak: int


@cache
def load(caching: bool) -> Load:
    """300 requests with a system prompt of 64 tokens and a question of 8 to 40 of their own; no model."""
    config = EngineConfig(
        num_gpu_blocks_override=256,
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        enable_prefix_caching=caching,
    )
    engine = Engine(config, runner=ScriptedRunner(lambda sequence, _: 7_000_000 + sequence.num_tokens))
    numbers, system, asked = random.Random(3), list(range(64)), 0
    for request in range(300):
        own = [1000 * (request + 1) + position for position in range(numbers.randint(8, 40))]
        engine.add_request(system + own, SamplingParams(max_tokens=16))
        asked += 64 + len(own)
    peak = computed = found = 0
    while engine.has_work:
        engine.step()
        peak = max(peak, engine.manager.pool.num_blocks - engine.manager.pool.num_free)
    for event in engine.log.read(0) or []:
        if isinstance(event, ev.SequenceScheduled):
            computed += event.num_tokens
        elif isinstance(event, ev.PrefixLookup):
            found += event.hit_tokens
    return Load(asked, computed, found, engine.num_steps, peak)


def many_users() -> tuple[Load, Load]:
    """300 users, one system prompt

    Returns the load with caching and without.
    """
    on, off = load(True), load(False)
    print(f"{'':12}{'computed':>10}{'found':>9}{'steps':>8}{'most blocks in use':>21}")
    for name, row in (("cache on", on), ("cache off", off)):
        print(f"{name:12}{row.computed:>10}{row.found:>9}{row.steps:>8}{row.peak:>21}")
    print(f"Hit rate: {on.found / on.asked:.0%} of {on.asked} prompt tokens.")
    return on, off


def left_behind() -> str:
    """After the first text has ended."""
    engine, ended, _ = two_users()
    return memory(
        engine.log.snapshot(ended),
        "After the first text: no table, no used block; four blocks are cached, with their tokens still in them.",
    )


def found_again() -> str:
    """The second text begins with blocks of the first."""
    engine, _, planned = two_users()
    title = "The second text's table begins with three blocks of the first and goes on with one of its own."
    return memory(engine.log.snapshot(planned), title)


def evicted() -> str:
    """Two blocks of the chain are gone, the head is left."""
    _, seq, engine = crowded()
    title = "Eight blocks after the second text: the head of the first text's chain is still cached, its tail is gone."
    return memory(engine.log.snapshot(seq), title)


PARTS = [
    second_user,
    the_chain,
    in_one_step,
    never_all_of_it,
    second_turn,
    salts,
    tails_go_first,
    many_users,
]
PICTURES = [left_behind, found_again, evicted]

if __name__ == "__main__":
    tell(PARTS, PICTURES)
