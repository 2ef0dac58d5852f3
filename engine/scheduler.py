"""Scheduler: which sequences compute how many tokens in this step.

One rule, no phases. Every sequence has tokens whose keys and values are not in the cache yet; a plan gives each of
some sequences a number of them to compute. A prompt, a chunk of one, a single new token, what a prefix hit left over
and what a preemption threw away are all the same.

    running   A 1 of 1   C 1 of 1   B 14 of 200        budget 16 tokens: those that need one token first
    waiting   D, E                                     admitted only if budget, blocks and sequence slots are left,
                                                       and only in a plan in which nothing was preempted

Continuous batching: Orca (OSDI 2022); chunked prefill: Sarathi-Serve (OSDI 2024); preemption of the newest by
recomputation: PagedAttention paper (SOSP 2023), section 4.5; one token count instead of phases: vLLM's v1 scheduler.
"""

import warnings
from collections import deque
from dataclasses import dataclass, field

from . import events as ev
from .block_table import BlockTable, blocks_needed
from .config import EngineConfig
from .event_log import EventLog
from .events import Why
from .kv_cache_manager import BlockCopy, KVCacheManager
from .policies import AdmissionView, Policy, VictimView
from .request import FinishReason, Request, Sequence, SequenceStatus


@dataclass(slots=True)
class ScheduledSequence:
    """Compute `num_tokens` tokens of `sequence` from position `start`, then draw `num_samples` next tokens.

    `num_samples` is 0 while the prompt is not finished, `n` on the step that finishes it, 1 afterwards. `block_table`
    is the sequence's own table, not a copy.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    num_samples: int
    block_table: BlockTable


@dataclass(slots=True)
class StepPlan:
    """What one step does. `copies` come before any write. `event` is the `seq` of its `StepPlanned`."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    num_tokens: int = 0
    num_preempted: int = 0
    event: int = -1


@dataclass(slots=True)
class Obstacle:
    """Why the first waiting sequence does not run, and the numbers behind it (blocks)."""

    why: Why
    view: AdmissionView = field(default_factory=lambda: AdmissionView(0, 0, 0, 0))


class Scheduler:
    """Owns the queues. `running` and `waiting` hold sequences; a finished one is in neither."""

    def __init__(self, config: EngineConfig, manager: KVCacheManager, policy: Policy, log: EventLog) -> None:
        self.running: dict[Sequence, None] = {}
        self.waiting: deque[Sequence] = deque()
        self.manager = manager
        self._policy = policy
        self._log = log
        self._max_num_seqs = config.max_num_seqs
        self._budget = config.max_num_batched_tokens
        self._watermark = max(1, round(config.watermark * manager.pool.num_blocks))

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a new request behind all others."""
        self.waiting.extend(request.sequences)

    def plan(self) -> StepPlan:
        """Decide the next step and move blocks accordingly, on paper."""
        plan = StepPlan()
        self.manager.begin_step()
        planned: set[Request] = set()
        for sequence in sorted(self.running, key=lambda s: s.num_uncomputed_tokens > 1):
            if plan.num_tokens == self._budget:
                break
            num_tokens = min(sequence.num_uncomputed_tokens, self._budget - plan.num_tokens)
            if sequence in self.running and self._make_room(sequence, num_tokens, planned, plan):
                self._schedule(sequence, num_tokens, plan)
                planned.add(sequence.request)
        obstacle = self._admit_waiting(plan)
        self._emit_plan(plan, obstacle)
        return plan

    def commit(self, plan: StepPlan, samples: list[list[int]]) -> list[tuple[Sequence, int]]:
        """Count the planned tokens as computed and append the sampled ones, forking where a prompt has n answers.

        `samples[i]` are the tokens drawn for `plan.scheduled[i]`. Returns each sequence that grew with its new token.
        """
        grown: list[tuple[Sequence, int]] = []
        for item, tokens in zip(plan.scheduled, samples, strict=True):
            sequence = item.sequence
            sequence.num_computed_tokens = item.start + item.num_tokens
            branches = [sequence, *(self._fork(sequence, index) for index in range(1, len(tokens)))]
            for branch, token in zip(branches, tokens, strict=False):
                grown.append((branch, token))
        for sequence, token in grown:
            sequence.token_ids.append(token)
        return grown

    def finish(self, sequence: Sequence, reason: FinishReason, why: Why, cause: int) -> None:
        """End a sequence in whatever state it is, and give its blocks back."""
        sequence.status, sequence.finish_reason = SequenceStatus.FINISHED, reason
        sequence.last_event = self._log.emit(ev.SequenceFinished, why, cause, sequence=sequence.name, reason=reason)
        if sequence in self.running:
            del self.running[sequence]
        else:
            self.waiting.remove(sequence)
        self.manager.free(sequence, Why.SEQUENCE_FINISHED, sequence.last_event)

    def _schedule(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> None:
        start, rest = sequence.num_computed_tokens, sequence.num_uncomputed_tokens - num_tokens
        if rest:
            why = Why.PREFILL_CHUNK
        elif start + num_tokens == sequence.num_prompt_tokens:
            why = Why.PREFILL
        else:
            why = Why.NEXT_TOKEN if num_tokens == 1 else Why.RECOMPUTE
        sequence.last_event = self._log.emit(
            ev.SequenceScheduled, why, sequence.last_event, sequence=sequence.name, start=start, num_tokens=num_tokens
        )
        plan.copies += self.manager.reserve(sequence, num_tokens, sequence.last_event)
        table = self.manager.tables[sequence.name]
        num_samples = 0 if rest else sequence.num_branches
        plan.scheduled.append(ScheduledSequence(sequence, start, num_tokens, num_samples, table))
        plan.num_tokens += num_tokens

    def _make_room(self, sequence: Sequence, num_tokens: int, planned: set[Request], plan: StepPlan) -> bool:
        """Preempt others until the blocks are free. False if the sequence has to sit this step out, or has ended."""
        manager = self.manager
        while (needs := manager.blocks_to_reserve(sequence, num_tokens)) > manager.pool.num_free:
            victims = {s.request for s in self.running} - planned - {sequence.request}
            siblings = [s for s in self.running if s is not sequence]
            if victims:
                request = self._choose_victim(victims)
                self._preempt([s for s in request.sequences if s in self.running], sequence, needs, plan)
            elif planned:
                return False
            elif siblings:  # a request whose branches do not fit together runs them in turn
                self._preempt(siblings[-1:], sequence, needs, plan)
            else:
                self.finish(sequence, FinishReason.OUT_OF_BLOCKS, Why.OUT_OF_BLOCKS, sequence.last_event)
                plan.finished.append(sequence)
                return False
        return True

    def _choose_victim(self, victims: set[Request]) -> Request:
        views = []
        for request in sorted(victims, key=lambda r: r.arrival):
            sequences = [s for s in request.sequences if s in self.running]
            computed = sum(s.num_computed_tokens for s in sequences)
            freed = self.manager.blocks_freed_by(sequences)
            views.append(VictimView(request.request_id, request.arrival, computed, freed, request.num_preemptions))
        chosen = self._policy.choose_victim(views)
        by_id = {request.request_id: request for request in victims}
        if chosen not in by_id:
            warnings.warn(f"the policy chose victim {chosen!r}, not a candidate; the newest gives way", stacklevel=2)
            chosen = views[-1].request_id
        return by_id[chosen]

    def _preempt(self, victims: list[Sequence], sequence: Sequence, needs: int, plan: StepPlan) -> None:
        """Take all blocks of a request's sequences; they go back to the head of the queue, to be computed again."""
        request = victims[0].request
        cause = self._log.emit(
            ev.RequestPreempted,
            Why.OUT_OF_BLOCKS,
            sequence.last_event,
            request=request.request_id,
            sequences=[victim.name for victim in victims],
            mode="recompute",
            for_sequence=sequence.name,
            needs=needs,
            free=self.manager.pool.num_free,
        )
        for victim in reversed(victims):
            del self.running[victim]
            victim.status, victim.num_computed_tokens, victim.last_event = SequenceStatus.PREEMPTED, 0, cause
            self.manager.free(victim, Why.PREEMPTED, cause)
            self.waiting.appendleft(victim)
        request.num_preemptions += 1
        plan.num_preempted += 1

    def _admit_waiting(self, plan: StepPlan) -> Obstacle:
        """Start waiting sequences, in order, until something is in the way; return what that is."""
        slots = self._max_num_seqs - sum(s.num_branches for s in self.running)
        while self.waiting:
            sequence = self.waiting[0]
            if plan.num_preempted:
                return Obstacle(Why.WAITS_AFTER_PREEMPTION)
            if slots < sequence.num_branches:
                return Obstacle(Why.WAITS_FOR_SEQUENCE_SLOT)
            if plan.num_tokens == self._budget:
                return Obstacle(Why.WAITS_FOR_TOKEN_BUDGET)
            prefix = self.manager.find_cached_prefix(sequence)
            total = blocks_needed(sequence.num_tokens, self.manager.block_size)
            if total > self.manager.pool.num_blocks:
                self.finish(sequence, FinishReason.OUT_OF_BLOCKS, Why.OUT_OF_BLOCKS, sequence.last_event)
                plan.finished.append(sequence)
                continue
            view = AdmissionView(
                needs=total - len(prefix),
                free=self.manager.free_after_sharing(prefix),
                watermark=self._watermark if self.running else 0,
                promised=self._promised_blocks(),
            )
            fits = view.needs <= view.free
            if not fits or (self.running and not self._policy.admit(view)):
                return Obstacle(Why.WAITS_FOR_BLOCKS, view)
            slots -= sequence.num_branches
            self._admit(sequence, prefix)
            self._schedule(sequence, min(sequence.num_uncomputed_tokens, self._budget - plan.num_tokens), plan)
        return Obstacle(Why.NOTHING_WAITS)

    def _admit(self, sequence: Sequence, prefix: list[int]) -> None:
        del self.waiting[0]
        num_cached = len(prefix) * self.manager.block_size
        if self.manager.enable_prefix_caching:
            sequence.last_event = self._log.emit(
                ev.PrefixLookup,
                Why.PREFIX_HIT if prefix else Why.PREFIX_MISS,
                sequence.last_event,
                sequence=sequence.name,
                num_tokens=sequence.num_tokens,
                hit_blocks=len(prefix),
                hit_tokens=num_cached,
            )
        resumed = sequence.status is SequenceStatus.PREEMPTED
        sequence.last_event = self._log.emit(
            ev.SequenceResumed if resumed else ev.SequenceAdmitted,
            Why.FITS,
            sequence.last_event,
            sequence=sequence.name,
            num_computed_tokens=num_cached,
        )
        self.manager.admit(sequence, prefix, sequence.last_event)
        sequence.status = SequenceStatus.RUNNING
        self.running[sequence] = None

    def _promised_blocks(self) -> int:
        """Blocks that running sequences still take for tokens they already have: prompts in the middle of prefill."""
        size, tables = self.manager.block_size, self.manager.tables
        return sum(blocks_needed(s.num_tokens, size) - len(tables[s.name]) for s in self.running)

    def _fork(self, parent: Sequence, sample_index: int) -> Sequence:
        request = parent.request
        child = Sequence(
            name=f"{request.request_id}.{sample_index}",
            request=request,
            sample_index=sample_index,
            token_ids=list(parent.token_ids),
            num_prompt_tokens=parent.num_prompt_tokens,
            status=SequenceStatus.RUNNING,
        )
        child.last_event = self._log.emit(
            ev.SequenceForked,
            Why.PARALLEL_SAMPLING,
            parent.last_event,
            request=request.request_id,
            parent=parent.name,
            child=child.name,
        )
        self.manager.fork(parent, child, child.last_event)
        request.sequences.append(child)
        self.running[child] = None
        return child

    def _emit_plan(self, plan: StepPlan, obstacle: Obstacle) -> None:
        view = obstacle.view
        plan.event = self._log.emit(
            ev.StepPlanned,
            obstacle.why,
            plan.scheduled[-1].sequence.last_event if plan.scheduled else -1,
            sequences=[item.sequence.name for item in plan.scheduled],
            num_tokens=[item.num_tokens for item in plan.scheduled],
            budget=self._budget,
            num_waiting=len(self.waiting),
            blocked=self.waiting[0].name if self.waiting else "",
            needs=view.needs,
            free=view.free,
            watermark=view.watermark,
            promised=view.promised,
        )
