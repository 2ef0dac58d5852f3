"""An engine without a model: random choices in, a valid event log out.

It keeps real block tables, so that its logs obey the engine's rules (a block's state follows its ref_count, a table
grows at its end, a shared block is copied before it is written), and takes every decision from one random generator, so
that hypothesis can drive it. `FakeLoop` gives it the interface of the engine's loop, for whoever does without torch.
"""

import hashlib
import random
import threading
from dataclasses import dataclass, field
from typing import Any

from pagelens.engine import events as ev
from pagelens.engine.errors import PagelensError, RequestError
from pagelens.engine.event_log import EventLog, LogHeader
from pagelens.engine.events import BlockState, Phase, Why
from pagelens.engine.sampling_params import SamplingParams
from pagelens.kernels.walk import ProgramWalk, TileRead

WORDS = ["A", "hacker", "is", "a", "person", "who", "bends", "<b>", "systems", "&", "\n", "ünïcode", "", "0"]


@dataclass
class FakeSequence:
    name: str
    request: str
    tokens: list[int]
    texts: list[str]
    num_prompt: int
    limit: int
    samples: int = 1
    computed: int = 0
    table: list[int] = field(default_factory=list)
    last_event: int = -1
    chunk: int = 0


class FakeEngine:
    """`step()` runs one whole step; `arrive()` and `abort()` may come between steps."""

    def __init__(self, rng: random.Random, num_blocks: int = 24, block_size: int = 4, budget: int = 16) -> None:
        self.rng = rng
        self.failure_rate = 0.02
        self.block_size = block_size
        self.budget = budget
        self.log = EventLog(
            LogHeader(
                num_blocks=num_blocks,
                block_size=block_size,
                config={"block_size": block_size, "max_num_seqs": 8, "max_num_batched_tokens": budget},
                model={"name": "fake", "architecture": "none", "num_layers": 0, "num_kv_heads": 0, "head_dim": 0},
                kernel={"name": "torch", "why": "a fake engine computes nothing", "interpreted": False},
            )
        )
        self.refs = [0] * num_blocks
        self.hashes: dict[int, str] = {}
        self.cached: list[int] = []
        self.waiting: list[FakeSequence] = []
        self.running: list[FakeSequence] = []
        self.num_requests = 0

    # requests

    def arrive(self, num_tokens: int, max_tokens: int = 6, samples: int = 1, prefix: int = 0) -> str:
        """A request whose first `prefix` tokens are those of every other request."""
        request = _letters(self.num_requests)
        self.num_requests += 1
        tokens = [i % len(WORDS) for i in range(prefix)]
        tokens += [self.rng.randrange(len(WORDS)) for _ in range(num_tokens - prefix)]
        texts = [WORDS[token] + " " for token in tokens]
        sequence = FakeSequence(f"{request}.0", request, tokens, texts, len(tokens), max_tokens, samples)
        sequence.last_event = self.log.emit(
            ev.RequestArrived,
            Why.SUBMITTED,
            request=request,
            sequence=sequence.name,
            prompt_token_ids=list(tokens),
            prompt_texts=list(texts),
            max_tokens=max_tokens,
            num_samples=samples,
        )
        self.waiting.append(sequence)
        return request

    def reject(self) -> None:
        self.log.emit(ev.RequestRejected, Why.INVALID, request="", message="the prompt is empty")

    def abort(self, request: str) -> None:
        cause = self.log.emit(ev.RequestAborted, Why.USER_ABORT, request=request)
        for sequence in [s for s in self.running + self.waiting if s.request == request]:
            self._finish(sequence, "abort", Why.USER_ABORT, cause)

    # a step

    def step(self) -> None:
        self.log.step += 1
        self.log.phase = Phase.PLAN
        preempted = self._plan_running()
        blocked = Why.WAITS_AFTER_PREEMPTION if preempted else self._admit()
        planned = [s for s in self.running if s.chunk]
        first = self.waiting[0] if self.waiting else None
        self.log.emit(
            ev.StepPlanned,
            blocked if first else Why.NOTHING_WAITS,
            sequences=[s.name for s in planned],
            num_tokens=[s.chunk for s in planned],
            budget=self.budget,
            num_waiting=len(self.waiting),
            blocked=first.name if first else "",
            needs=self._needed(len(first.tokens)) if first else 0,
            free=self._num_free(),
            watermark=1,
        )
        self.log.phase = Phase.LAUNCH
        launched = self.log.emit(ev.StepLaunched, Why.SCHEDULED, kernel="torch", grid=[1], num_tokens=1)
        if self.rng.random() < self.failure_rate:
            self._fail(planned, launched)
        else:
            self._commit(planned, launched)
        self.log.phase = Phase.IDLE

    def _plan_running(self) -> bool:
        preempted = False
        for sequence in list(self.running):
            if sequence not in self.running:
                continue
            self._schedule(sequence)
            while not self._make_room(sequence):
                victims = [s for s in self.running if s.request != sequence.request and not s.chunk]
                preempted = True
                if victims:
                    self._preempt(victims[-1], sequence)
                else:
                    self._finish(sequence, "out_of_blocks", Why.OUT_OF_BLOCKS, sequence.last_event)
                    break
        return preempted

    def _schedule(self, sequence: FakeSequence) -> None:
        missing = len(sequence.tokens) - sequence.computed
        sequence.chunk = min(missing, self.budget)
        why = Why.NEXT_TOKEN if missing == 1 else Why.PREFILL if sequence.chunk == missing else Why.PREFILL_CHUNK
        sequence.last_event = self.log.emit(
            ev.SequenceScheduled,
            why,
            sequence.last_event,
            sequence=sequence.name,
            start=sequence.computed,
            num_tokens=sequence.chunk,
        )

    def _make_room(self, sequence: FakeSequence) -> bool:
        """Own blocks for the chunk: copy what is shared and written to, then grow. False if the pool is empty."""
        first, last = sequence.computed // self.block_size, self._needed(sequence.computed + sequence.chunk)
        for index in range(first, len(sequence.table)):
            source = sequence.table[index]
            if self.refs[source] > 1:
                block = self._take(sequence, index)
                if block is None:
                    return False
                self.log.emit(
                    ev.BlockCopied,
                    Why.SHARED_BLOCK,
                    sequence.last_event,
                    source=source,
                    destination=block,
                    sequence=sequence.name,
                    index=index,
                )
                self._release(source, sequence, index, Why.COPIED_AWAY)
        while len(sequence.table) < last:
            if self._take(sequence, len(sequence.table)) is None:
                return False
        for index in range(first, (sequence.computed + sequence.chunk) // self.block_size):
            self._seal(sequence, index)
        return True

    def _admit(self) -> Why:
        while self.waiting:
            sequence = self.waiting[0]
            if len(self.running) + sequence.samples > 8:
                return Why.WAITS_FOR_SEQUENCE_SLOT
            if self._needed(len(sequence.tokens)) + 1 > self._num_free():
                return Why.WAITS_FOR_BLOCKS
            self.waiting.pop(0)
            hits = self._lookup(sequence)
            self.log.emit(
                ev.PrefixLookup,
                Why.PREFIX_HIT if hits else Why.PREFIX_MISS,
                sequence.last_event,
                sequence=sequence.name,
                num_tokens=len(sequence.tokens),
                hit_blocks=len(hits),
                hit_tokens=len(hits) * self.block_size,
            )
            resumed = len(sequence.tokens) > sequence.num_prompt
            sequence.computed = len(hits) * self.block_size
            sequence.last_event = self.log.emit(
                ev.SequenceResumed if resumed else ev.SequenceAdmitted,
                Why.FITS,
                sequence.last_event,
                sequence=sequence.name,
                num_computed_tokens=sequence.computed,
            )
            for block in hits:
                self._share(block, sequence, len(sequence.table), Why.PREFIX_HIT)
            self.running.append(sequence)
            self._schedule(sequence)
            if not self._make_room(sequence):
                raise AssertionError("admitted without room")
        return Why.NOTHING_WAITS

    def _lookup(self, sequence: FakeSequence) -> list[int]:
        hits, parent = [], ""
        for index in range((len(sequence.tokens) - 1) // self.block_size):
            parent = self._hash(parent, sequence, index)
            block = next((b for b, h in self.hashes.items() if h == parent), None)
            if block is None:
                break
            hits.append(block)
        return hits

    def _commit(self, planned: list[FakeSequence], launched: int) -> None:
        self.log.phase = Phase.COMMIT
        self.log.emit(
            ev.TokensWritten,
            Why.SCHEDULED,
            launched,
            sequences=[s.name for s in planned],
            starts=[s.computed for s in planned],
            counts=[s.chunk for s in planned],
        )
        for sequence in planned:
            sequence.computed, sequence.chunk = sequence.computed + sequence.chunk, 0
        ready = [s for s in planned if s.computed == len(s.tokens)]
        for sequence in list(ready):
            ready += self._fork(sequence)
        tokens = [self.rng.randrange(len(WORDS)) for _ in ready]
        generated = self.log.emit(
            ev.TokensGenerated,
            Why.MODEL_OUTPUT,
            launched,
            sequences=[s.name for s in ready],
            token_ids=tokens,
            texts=[WORDS[token] + " " for token in tokens],
        )
        for sequence, token in zip(ready, tokens, strict=True):
            sequence.tokens.append(token)
            sequence.texts.append(WORDS[token] + " ")
            if len(sequence.tokens) - sequence.num_prompt >= sequence.limit:
                self._finish(sequence, "length", Why.MAX_TOKENS, generated)
        self.log.emit(ev.StepCommitted, Why.SCHEDULED, plan_ns=1, launch_ns=2, commit_ns=3)

    def _fork(self, parent: FakeSequence) -> list[FakeSequence]:
        children = []
        for sample in range(1, parent.samples):
            child = FakeSequence(
                f"{parent.request}.{sample}",
                parent.request,
                list(parent.tokens),
                list(parent.texts),
                parent.num_prompt,
                parent.limit,
                computed=parent.computed,
            )
            child.last_event = self.log.emit(
                ev.SequenceForked,
                Why.PARALLEL_SAMPLING,
                parent.last_event,
                request=parent.request,
                parent=parent.name,
                child=child.name,
            )
            for index, block in enumerate(parent.table):
                self._share(block, child, index, Why.PARALLEL_SAMPLING)
            children.append(child)
        parent.samples = 1
        self.running += children
        return children

    def _fail(self, planned: list[FakeSequence], launched: int) -> None:
        failed = self.log.emit(ev.StepFailed, Why.STEP_FAILED, launched, error="no such luck")
        for sequence in planned:
            for index in range(sequence.computed // self.block_size, len(sequence.table)):
                block = sequence.table[index]
                if block in self.hashes:
                    self.log.emit(ev.BlockUnsealed, Why.STEP_FAILED, failed, block=block, hash=self.hashes.pop(block))
            self._finish(sequence, "error", Why.STEP_FAILED, failed)

    # blocks

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _num_free(self) -> int:
        return self.refs.count(0)

    def _take(self, sequence: FakeSequence, index: int) -> int | None:
        free = [b for b, refs in enumerate(self.refs) if refs == 0]
        blank = [b for b in free if b not in self.hashes]
        if not free:
            return None
        if blank:
            block = self.rng.choice(blank)
        else:
            block = self.cached.pop(0)
            self.log.emit(
                ev.BlockEvicted,
                Why.LEAST_RECENTLY_USED,
                sequence.last_event,
                block=block,
                hash=self.hashes.pop(block),
                state=BlockState.BLANK,
            )
        self._hold(ev.BlockAllocated, block, sequence, index, Why.TABLE_GROWS)
        return block

    def _share(self, block: int, sequence: FakeSequence, index: int, why: Why) -> None:
        if block in self.cached:
            self.cached.remove(block)
        self._hold(ev.BlockShared, block, sequence, index, why)

    def _hold(self, kind: type[ev.Event], block: int, sequence: FakeSequence, index: int, why: Why) -> None:
        self.refs[block] += 1
        sequence.table[index : index + 1] = [block]
        self.log.emit(
            kind,
            why,
            sequence.last_event,
            block=block,
            sequence=sequence.name,
            index=index,
            ref_count=self.refs[block],
            state=BlockState.USED,
        )

    def _release(self, block: int, sequence: FakeSequence, index: int, why: Why) -> None:
        self.refs[block] -= 1
        state = BlockState.USED if self.refs[block] else BlockState.CACHED if block in self.hashes else BlockState.BLANK
        if state is BlockState.CACHED:
            self.cached.append(block)
        self.log.emit(
            ev.BlockReleased,
            why,
            sequence.last_event,
            block=block,
            sequence=sequence.name,
            index=index,
            ref_count=self.refs[block],
            state=state,
        )

    def _hash(self, parent: str, sequence: FakeSequence, index: int) -> str:
        tokens = sequence.tokens[index * self.block_size : (index + 1) * self.block_size]
        return hashlib.sha256(f"{parent}{tokens}".encode()).hexdigest()[:32]

    def _seal(self, sequence: FakeSequence, index: int) -> None:
        parent = ""
        for i in range(index):
            parent = self._hash(parent, sequence, i)
        digest = self._hash(parent, sequence, index)
        block = sequence.table[index]
        if digest in self.hashes.values() or block in self.hashes:
            return
        self.hashes[block] = digest
        self.log.emit(
            ev.BlockSealed,
            Why.BLOCK_FULL,
            sequence.last_event,
            block=block,
            sequence=sequence.name,
            index=index,
            hash=digest,
            parent=parent,
        )

    def _release_all(self, sequence: FakeSequence, why: Why) -> None:
        while sequence.table:
            self._release(sequence.table.pop(), sequence, len(sequence.table), why)

    def _preempt(self, victim: FakeSequence, grower: FakeSequence) -> None:
        victim.last_event = self.log.emit(
            ev.RequestPreempted,
            Why.OUT_OF_BLOCKS,
            grower.last_event,
            request=victim.request,
            sequences=[victim.name],
            mode="recompute",
            for_sequence=grower.name,
            needs=1,
            free=self._num_free(),
        )
        self._release_all(victim, Why.PREEMPTED)
        victim.computed = victim.chunk = 0
        self.running.remove(victim)
        self.waiting.insert(0, victim)

    def _finish(self, sequence: FakeSequence, reason: str, why: Why, cause: int) -> None:
        sequence.last_event = self.log.emit(ev.SequenceFinished, why, cause, sequence=sequence.name, reason=reason)
        self._release_all(sequence, Why.SEQUENCE_FINISHED)
        sequence.chunk = 0
        (self.running if sequence in self.running else self.waiting).remove(sequence)


def _letters(number: int) -> str:
    name = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def emit_trace(log: EventLog) -> None:
    """A walk over two tiles, the second of which the last token does not see."""
    tiles = [TileRead(0, 3, [2], [2], [1.5, None], [2.0, 0.0]), TileRead(4, 6, [0], [0], [1.5, None], [2.0, 0.0])]
    log.emit(
        ev.KernelTraced,
        Why.USER_TRACE,
        sequence="A.0",
        layer=1,
        kv_head=0,
        kernel="triton",
        taken_from="interpreter",
        grid=[2, 2, 1],
        blocks=[0, 2],
        programs=[ProgramWalk([1, 0, 0], 6, 1, tiles)],
        start=6,
        num_tokens=1,
        group=2,
        block_m=2,
        block_q=1,
        tile=4,
    )


def random_run(rng: random.Random, num_steps: int) -> FakeEngine:
    """A run with arrivals, aborts and rejections between its steps, on a pool small enough to overflow."""
    block_size = rng.choice([1, 2, 4, 16])
    engine = FakeEngine(rng, num_blocks=rng.randint(6, 20), block_size=block_size)
    for _ in range(num_steps):
        if rng.random() < 0.4:
            most = (len(engine.refs) - 2) * block_size
            prefix = rng.choice([0, min(most, 3 * block_size)])
            engine.arrive(rng.randint(max(1, prefix), max(1, most)), rng.randint(1, 6), rng.randint(1, 3), prefix)
        if rng.random() < 0.05:
            engine.reject()
        if engine.running and rng.random() < 0.05:
            engine.abort(rng.choice(engine.running).request)
        engine.step()
    return engine


class FakeLoop:
    """The interface of `EngineLoop` over a `FakeEngine`, with its thread."""

    def __init__(self, num_blocks: int = 64, block_size: int = 16, seed: int = 0) -> None:
        self.engine = FakeEngine(random.Random(seed), num_blocks, block_size, budget=64)
        self.engine.failure_rate = 0.0
        self.steps_per_second: float | None = 5.0
        self.failure: Exception | None = None
        self.halted = False
        self.queued: list[str] = []
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def log(self) -> EventLog:
        return self.engine.log

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, prompt: str | list[int], params: SamplingParams) -> str:
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token")
        with self._lock:
            return self.engine.arrive(max(len(prompt) // 4, 1), params.max_tokens, params.n, min(40, len(prompt) // 8))

    def submit_all(self, requests: list[tuple[str, SamplingParams]]) -> list[str]:
        return [self.submit(prompt, params) for prompt, params in requests]

    def abort(self, request_id: str) -> None:
        with self._lock:
            if all(s.request != request_id for s in self.engine.running + self.engine.waiting):
                raise RequestError(f"there is no request {request_id}")
            self.engine.abort(request_id)

    def halt(self) -> None:
        with self._lock:
            self.halted = True
            self.log.emit(ev.EngineHalted, Why.USER_HALT, after=Phase.COMMIT)

    def run(self) -> None:
        with self._lock:
            self.halted = False
            self.log.emit(ev.EngineContinued, Why.USER_RUN)

    def step(self) -> None:
        with self._lock:
            if not self.halted:
                raise PagelensError("the engine is running: halt it before asking for one step")
            self.log.emit(ev.EngineContinued, Why.USER_STEP)
            self.engine.step()
            self.log.emit(ev.EngineHalted, Why.USER_STEP, after=Phase.COMMIT)

    def replace_log(self) -> None:
        """What loading another model does: a new run begins."""
        with self._lock:
            self.engine = FakeEngine(random.Random(1), 32, 16)

    def _run(self) -> None:
        while not self.stopped.wait(1 / (self.steps_per_second or 100)):
            with self._lock:
                if not self.halted and (self.engine.running or self.engine.waiting):
                    self.engine.step()


def header_fields(log: EventLog) -> dict[str, Any]:
    return {"num_blocks": log.header.num_blocks, "block_size": log.header.block_size}
