"""Scheduler: which sequences compute how many tokens in this step.

One rule, no phases. Every sequence has tokens whose keys and values are not in the cache yet; a plan gives each of
some sequences a number of them to compute. A prompt, a chunk of one, a single new token, what a prefix hit left over
and what a preemption threw away are all the same.

    running   B 1 of 1   C 1 of 1   A 14 of 200        budget 16 tokens: those that need one token first
    waiting   D, E                                     admitted only if budget, blocks and sequence slots are left,
                                                       and only in a plan in which nothing was preempted

Continuous batching: Orca (OSDI 2022); chunked prefill: Sarathi-Serve (OSDI 2024); preemption: PagedAttention
paper (SOSP 2023), section 4.5; one token count instead of phases: vLLM's v1 scheduler.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from . import events as ev
from .block_table import blocks_needed
from .config import EngineConfig
from .event_log import EventLog
from .events import Why
from .kv_cache_manager import KVCacheManager
from .policies import AdmissionView, Policy
from .preemption import Preemption, Room
from .request import FinishReason, Request, Sequence, SequenceStatus
from .sampler import Sample, SequenceResult
from .step_plan import ScheduledSequence, StepPlan
from .swap import Swap


@dataclass(slots=True)
class Obstacle:
    """Why the first waiting sequence does not run, and the numbers behind it (blocks)."""

    why: Why
    view: AdmissionView = field(default_factory=lambda: AdmissionView(0, 0, 0, 0))


class Scheduler:
    """Owns the queues, which hold sequences; a finished one is in none.

    `running` have their blocks; `waiting` are to run, in order; `parked` are preempted beams that need nothing computed
    until their search has heard from the other beams.
    """

    def __init__(self, config: EngineConfig, manager: KVCacheManager, policy: Policy, log: EventLog) -> None:
        self.running: dict[Sequence, None] = {}
        self.waiting: deque[Sequence] = deque()
        self.parked: dict[Sequence, None] = {}
        self.manager = manager
        self._policy = policy
        self._log = log
        self._max_num_seqs = config.max_num_seqs
        self._budget = config.max_num_batched_tokens
        self._watermark = math.ceil(config.watermark * manager.pool.num_blocks)
        self._swap = Swap(manager, log)
        queues = (self.running, self.waiting, self.parked)
        self._preemption = Preemption(*queues, manager, self._swap, policy, log, config)
        self._max_preemptions = config.max_preemptions
        self._by_priority = config.scheduling_policy == "priority"
        self._aging_steps = config.priority_aging_steps

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def add(self, request: Request, step: int) -> None:
        """Queue a new request behind all others ("fcfs"), or behind all that are as urgent ("priority").

        Every `priority_aging_steps` steps that a request is here make it more urgent by 1, so that none waits for ever:
        one of priority p overtakes newcomers of priority q once it is (p - q) * priority_aging_steps steps older. As
        all age alike, their order never changes, and the urgency can be fixed on arrival.
        """
        if self._by_priority:
            request.urgency = request.priority + step / self._aging_steps
        self.waiting.extend(request.sequences)

    def plan(self) -> StepPlan:
        """Decide the next step and move blocks accordingly, on paper."""
        plan = StepPlan()
        self.manager.begin_step()
        planned: set[Request] = set()
        if self._by_priority:
            ordered = sorted(self.waiting, key=lambda s: (s.request.urgency, s.request.arrival))
            self.waiting.clear()
            self.waiting.extend(ordered)
        for sequence in sorted(self.running, key=self._turn):
            if plan.num_tokens == self._budget:
                break
            if sequence.num_uncomputed_tokens == 0:  # a beam that waits for the others
                continue
            num_tokens = min(sequence.num_uncomputed_tokens, self._budget - plan.num_tokens)
            if sequence not in self.running:  # preempted for one before it
                continue
            room = self._preemption.make_room(sequence, num_tokens, planned, plan)
            if room is Room.MADE:
                self._schedule(sequence, num_tokens, plan)
                planned.add(sequence.request)
            elif room is Room.NEVER:
                self._finish_without_room(sequence, plan)
        obstacle = self._admit_waiting(plan)
        if not (plan.scheduled or plan.finished or plan.num_preempted) and self.running:
            # Nothing but beams that wait for one of the waiting, which finds no room: park the last of them.
            self._preemption.preempt(list(self.running)[-1:], self.waiting[0], obstacle.view.needs, plan)
        self._emit_plan(plan, obstacle)
        return plan

    def _turn(self, sequence: Sequence) -> tuple[bool, bool, float]:
        """Sort key of the running: who needs one token, who was preempted too often to be a victim, the most urgent."""
        request = sequence.request
        tired = request.num_preemptions >= self._max_preemptions
        return sequence.num_uncomputed_tokens > 1, not tired, request.urgency

    def commit(self, plan: StepPlan, results: list[SequenceResult]) -> list[tuple[Sequence, Sample]]:
        """Count the planned tokens as computed and append the new ones, forking where an answer branches.

        `results[i]` belongs to `plan.scheduled[i]`. Returns each sequence that grew with its new token.
        """
        grown: list[tuple[Sequence, Sample]] = []
        for item, result in zip(plan.scheduled, results, strict=True):
            sequence, request = item.sequence, item.sequence.request
            sequence.num_computed_tokens = item.start + item.num_tokens
            request.prompt_logprobs |= result.prompt_logprobs
            if result.candidates:
                sequence.candidates = result.candidates
                if all(beam.candidates for beam in request.beams):
                    grown += self._advance_beams(request)
            elif result.samples:
                rest = [self._fork(sequence, Why.PARALLEL_SAMPLING) for _ in result.samples[1:]]
                grown += zip([sequence, *rest], result.samples, strict=True)
        for request in {sequence.request for sequence in plan.finished}:  # the others need not wait for it any longer
            if request.search is not None and request.beams and all(beam.candidates for beam in request.beams):
                grown += self._advance_beams(request)
        for sequence, sample in grown:
            sequence.token_ids.append(sample.token_id)
        return grown

    def fail(self, plan: StepPlan, cause: int) -> list[Sequence]:
        """End the sequences of a plan whose launch failed; what was to be swapped out is lost and computed again."""
        self.manager.unseal_step(cause)
        for sequence in list(plan.swapped_out):
            self._preemption.drop_blocks(sequence, sequence, 0, plan, cause)
        failed: dict[Sequence, None] = {}
        for item in plan.scheduled:  # a beam search cannot go on without one of its beams
            search = item.sequence.request.search
            failed |= dict.fromkeys([item.sequence] if search is None else item.sequence.request.beams)
        for sequence in failed:
            self.finish(sequence, FinishReason.ERROR, Why.STEP_FAILED, cause)
        return list(failed)

    def finish(self, sequence: Sequence, reason: FinishReason, why: Why, cause: int) -> None:
        """End a sequence in whatever state it is, and give its blocks back."""
        sequence.status, sequence.finish_reason = SequenceStatus.FINISHED, reason
        sequence.last_event = self._log.emit(ev.SequenceFinished, why, cause, sequence=sequence.name, reason=reason)
        if sequence in self.running:
            del self.running[sequence]
        elif sequence in self.parked:
            del self.parked[sequence]
        else:
            self.waiting.remove(sequence)
        self.manager.free(sequence, Why.SEQUENCE_FINISHED, sequence.last_event)
        search, beams = sequence.request.search, sequence.request.beams
        if search is not None and sequence in beams and reason is not FinishReason.BEAM:
            search.give_up(beams.index(sequence), sequence.output_token_ids, reason)
            beams.remove(sequence)

    def _finish_without_room(self, sequence: Sequence, plan: StepPlan) -> None:
        self.finish(sequence, FinishReason.OUT_OF_BLOCKS, Why.OUT_OF_BLOCKS, sequence.last_event)
        plan.finished.append(sequence)

    def _advance_beams(self, request: Request) -> list[tuple[Sequence, Sample]]:
        """All beams have their candidates: fork those that split, drop those that lost, at once."""
        search, beams = request.search, request.beams
        assert search is not None
        continuations = search.advance([beam.candidates for beam in beams], [beam.output_token_ids for beam in beams])
        taken: set[int] = set()
        going: list[tuple[Sequence, Sample]] = []
        for parent, token_id, _ in continuations:
            beam = self._fork(beams[parent], Why.BEAM_SPLIT) if parent in taken else beams[parent]
            taken.add(parent)
            going.append((beam, Sample(token_id)))
        why = Why.BEAM_SEARCH_OVER if search.done else Why.BEAM_DROPPED
        for index, beam in enumerate(beams):
            beam.candidates = []
            if index not in taken:
                self.finish(beam, FinishReason.BEAM, why, beam.last_event)
        request.beams = [beam for beam, _ in going]
        for beam in request.beams:
            if beam in self.parked:
                del self.parked[beam]
                self.waiting.appendleft(beam)
        return going

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
            total = blocks_needed(sequence.num_tokens, self.manager.block_size)
            if total > self.manager.pool.num_blocks:
                self._finish_without_room(sequence, plan)
                continue
            swapped = sequence.name in self.manager.tables
            prefix = [] if swapped or sequence.reads_no_cache else self.manager.find_cached_prefix(sequence)
            view = AdmissionView(
                needs=self._swap.blocks_to_swap_in(sequence) if swapped else total - len(prefix),
                free=self.manager.free_after_sharing(prefix),
                watermark=self._watermark if self.running else 0,
                promised=self._promised_blocks(),
            )
            stuck = view.needs > view.free and not self.running
            if stuck and self._preemption.drop_a_waiting_table(sequence, view.needs, plan):
                continue
            if view.needs > view.free or (self.running and not self._policy.admit(view)):
                return Obstacle(Why.WAITS_FOR_BLOCKS, view)
            slots -= sequence.num_branches
            self._admit(sequence, None if swapped else prefix, plan)
            self._schedule(sequence, min(sequence.num_uncomputed_tokens, self._budget - plan.num_tokens), plan)
        return Obstacle(Why.NOTHING_WAITS)

    def _admit(self, sequence: Sequence, prefix: list[int] | None, plan: StepPlan) -> None:
        """Let the first waiting sequence run: from its cached prefix, or (None) from the host pool."""
        del self.waiting[0]
        if prefix is not None:
            sequence.num_computed_tokens = len(prefix) * self.manager.block_size
            if self.manager.enable_prefix_caching:
                sequence.last_event = self._log.emit(
                    ev.PrefixLookup,
                    Why.PREFIX_HIT if prefix else Why.PREFIX_MISS,
                    sequence.last_event,
                    sequence=sequence.name,
                    num_tokens=sequence.num_tokens,
                    hit_blocks=len(prefix),
                    hit_tokens=sequence.num_computed_tokens,
                )
        resumed = sequence.status is SequenceStatus.PREEMPTED
        sequence.last_event = self._log.emit(
            ev.SequenceResumed if resumed else ev.SequenceAdmitted,
            Why.FITS,
            sequence.last_event,
            sequence=sequence.name,
            num_computed_tokens=sequence.num_computed_tokens,
        )
        if prefix is None:
            plan.swap_in += self._swap.swap_in(sequence, sequence.last_event)
        else:
            self.manager.admit(sequence, prefix, sequence.last_event)
        sequence.status = SequenceStatus.RUNNING
        self.running[sequence] = None

    def _promised_blocks(self) -> int:
        """Blocks that running sequences still take for tokens they already have: prompts in the middle of prefill."""
        size, tables = self.manager.block_size, self.manager.tables
        return sum(blocks_needed(s.num_tokens, size) - len(tables[s.name]) for s in self.running)

    def _fork(self, parent: Sequence, why: Why) -> Sequence:
        request = parent.request
        child = Sequence(
            name=f"{request.request_id}.{len(request.sequences)}",
            request=request,
            sample_index=len(request.sequences),
            token_ids=list(parent.token_ids),
            num_prompt_tokens=parent.num_prompt_tokens,
        )
        running = parent in self.running
        child.status = SequenceStatus.RUNNING if running else SequenceStatus.PREEMPTED
        child.last_event = self._log.emit(
            ev.SequenceForked,
            why,
            parent.last_event,
            request=request.request_id,
            parent=parent.name,
            child=child.name,
            status=child.status,
        )
        request.sequences.append(child)
        if running:
            self.manager.fork(parent, child, why, child.last_event)
            self.running[child] = None
        else:  # a preempted beam has no blocks to share: its fork is computed from the start
            self.waiting.appendleft(child)
        return child

    def _emit_plan(self, plan: StepPlan, obstacle: Obstacle) -> None:
        view = obstacle.view
        plan.event = self._log.emit(
            ev.StepPlanned,
            obstacle.why,
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
