"""Small runs of the real scheduler, cache manager and event log, for the pages to quote. No model takes part.

A `ScriptedRunner` stands in for the model, so a run takes milliseconds and is the same every time. Each run asserts the
facts that the prose around it states: if the engine changes, the site does not build until the prose is right again.
"""

import time
from contextlib import suppress
from typing import Any

from pagelens.engine import Engine, EngineConfig, EngineLoop, RequestError, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.beam_search import Candidate
from pagelens.engine.events import Event
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.policies import DefaultPolicy, EvictionView
from pagelens.engine.request import Sequence
from pagelens.engine.runner import Launch, ScriptedRunner
from pagelens.engine.sampler import SequenceResult
from pagelens.engine.static_scheduler import StaticScheduler

BROKEN_TOKEN = 13
"""A prompt with this token makes the scripted model fail."""


class BeamRunner(ScriptedRunner):
    """A scripted runner that names continuations for beams too."""

    def execute(self, launch: Launch) -> list[SequenceResult]:
        """Tokens for samples, candidates for beams."""
        results = super().execute(launch)
        for item, result in zip(launch.plan.scheduled, results, strict=True):
            search = item.sequence.request.search
            if search is not None and item.num_samples:
                length = item.sequence.num_tokens
                result.samples = []
                result.candidates = [Candidate(100 + length + rank, -1.0 - rank / 9) for rank in range(6)]
        return results


def scripted_engine(num_blocks: int, host_blocks: int = 0, **options: Any) -> Engine:
    """An engine with blocks of 4 tokens and a script for a model."""

    def next_token(sequence: Sequence, sample_index: int) -> int:
        if BROKEN_TOKEN in sequence.token_ids:
            raise RuntimeError("the model broke down")
        return 100 * sample_index + sequence.num_tokens

    config = EngineConfig(
        block_size=4,
        num_gpu_blocks_override=num_blocks,
        **{"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 16} | options,
    )
    return Engine(config, runner=BeamRunner(next_token), scripted_host_blocks=host_blocks)


def run(engine: Engine) -> list[Event]:
    """Serve all requests, checking the invariants after every step; return the events."""
    while engine.has_work:
        engine.step()
        check_integrity(engine)
        check_map(engine, engine.log.snapshot())
    return engine.log.read(0) or []


def forked_run() -> list[Event]:
    """Copy-on-write: one prompt of 6 tokens, three samples, blocks of 4."""
    engine = scripted_engine(8)
    engine.add_request([21, 22, 23, 24, 25, 26], SamplingParams(n=3, max_tokens=2))
    events = run(engine)
    copies = [(e.sequence, e.source, e.destination) for e in events if isinstance(e, ev.BlockCopied)]
    assert copies == [("A.0", 1, 2), ("A.1", 1, 3)], copies
    return [e for e in events if (e.step, e.phase) in ((0, "commit"), (1, "plan"))]


def shared_prefix_run() -> list[Event]:
    """Two prompts submitted together that begin with the same 8 tokens."""
    engine = scripted_engine(8, max_num_batched_tokens=32)
    engine.add_request([*range(21, 29), 31], SamplingParams(max_tokens=1))
    engine.add_request([*range(21, 29), 41, 42, 43], SamplingParams(max_tokens=1))
    events = run(engine)
    hits = [(e.sequence, e.hit_blocks, e.step) for e in events if isinstance(e, ev.PrefixLookup)]
    assert hits == [("A.0", 0, 0), ("B.0", 2, 0)], hits
    kinds = ev.PrefixLookup | ev.BlockAllocated | ev.BlockShared | ev.BlockSealed | ev.SequenceScheduled
    return [e for e in events if isinstance(e, kinds) and e.step == 0]


def preempting_run() -> list[Event]:
    """Two growing requests in a pool that cannot hold both to their end."""
    engine = scripted_engine(6)
    for first_token in (21, 41):
        engine.add_request(list(range(first_token, first_token + 8)), SamplingParams(max_tokens=8))
    events = run(engine)
    preempted = [e for e in events if isinstance(e, ev.RequestPreempted)]
    assert [(e.request, e.for_sequence, e.needs, e.free) for e in preempted] == [("B", "A.0", 1, 0)], preempted
    step = preempted[0].step
    resumed = [e for e in events if isinstance(e, ev.SequenceResumed)]
    assert [e.num_computed_tokens for e in resumed] == [8], resumed
    again = [e for e in events if e.step == resumed[0].step and e.phase == "plan"]
    return [e for e in events if e.step == step and e.phase == "plan"] + again


def every_kind() -> list[Event]:
    """One run in which every kind of event occurs."""
    engine = scripted_engine(6, max_num_batched_tokens=12)
    loop = EngineLoop(engine).start()
    loop.halt()
    prompt = list(range(21, 27))
    loop.submit(prompt, SamplingParams(n=2, max_tokens=9))
    loop.submit([*prompt, 31, 32], SamplingParams(max_tokens=9))
    loop.submit([BROKEN_TOKEN, *range(31, 37)], SamplingParams())
    withdrawn = loop.submit(list(range(41, 51)), SamplingParams(max_tokens=4))
    loop.submit(list(range(51, 56)), SamplingParams(max_tokens=40))
    with suppress(RequestError):
        loop.submit([], SamplingParams())
    loop.step()
    loop.abort(withdrawn)
    loop.run()
    while engine.has_work and loop.failure is None:
        time.sleep(0.001)
    loop.stop()
    assert loop.failure is None, loop.failure
    return engine.log.read(0) or []


def traced_run() -> list[Event]:
    """The embedded model, one step of which is traced; torch, so that it runs anywhere."""
    engine = Engine(EngineConfig(kernel="torch", num_gpu_blocks_override=8))
    engine.add_request([21, 22, 23, 24, 25, 26], SamplingParams(max_tokens=2))
    engine.trace_kernel("A.0", layer=1)
    return run(engine)


def swapping_beams() -> list[Event]:
    """Beams on a pool that is too small for them, with a host pool; then the prefix cache is reset."""
    engine = scripted_engine(7, host_blocks=2)
    for first_token in (21, 41):
        prompt = list(range(first_token, first_token + 6))
        engine.add_request(prompt, SamplingParams(beam_width=3, max_tokens=9))
    engine.add_request([61, 62], SamplingParams(n=2, max_tokens=20))
    for _ in range(4):
        engine.step()
    engine.abort("B")
    engine.reset_prefix_cache()
    return run(engine)


class EvictNewest:
    """Evicts what was released last; a policy need not derive from DefaultPolicy."""

    admit = DefaultPolicy.admit
    choose_victim = DefaultPolicy.choose_victim

    def choose_eviction(self, cached: EvictionView) -> int:
        """The last of the cached blocks."""
        return list(cached)[-1]


def every_end_and_wait() -> list[Event]:
    """Short runs with the reasons that the other runs do not have."""
    prompt = [21, 22, 23, 24, 25]
    cases: list[tuple[dict[str, Any], list[SamplingParams]]] = [
        ({"max_num_seqs": 1}, [SamplingParams(max_tokens=2), SamplingParams(stop_token_ids=(5,))]),
        ({"max_model_len": 7}, [SamplingParams()]),
        ({"num_blocks": 2}, [SamplingParams()]),
        (
            {"num_blocks": 3, "policy": f"{__name__}:EvictNewest"},
            [SamplingParams(max_tokens=4), SamplingParams(max_tokens=7)],
        ),
    ]
    events = []
    for options, requests in cases:
        engine = scripted_engine(**{"num_blocks": 8} | options)
        for number, params in enumerate(requests):
            engine.add_request([token + 10 * number for token in prompt], params)
        events += run(engine)
    engine = scripted_engine(8)
    engine.scheduler = StaticScheduler(engine.config, engine.manager, DefaultPolicy(), engine.log)
    for tokens in (prompt, prompt[:2]):
        engine.add_request(tokens, SamplingParams(max_tokens=2))
        engine.step()
    return events + run(engine)
