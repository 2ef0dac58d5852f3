"""Preemption: who gives way when a running sequence needs blocks and none are free, and how.

    swap        the victim's unshared blocks move to the host pool, if it has room, and come back later
    recompute   all its blocks are given back; its tokens are computed again, from what the prefix cache still has

A request gives way as a whole, all its running sequences together; who is planned already in this step does not.
PagedAttention paper (SOSP 2023), section 4.5.
"""

import warnings
from collections import deque
from enum import Enum, auto

from . import events as ev
from .block_table import on_host
from .config import EngineConfig
from .event_log import EventLog
from .events import Why
from .kv_cache_manager import KVCacheManager
from .policies import Policy, VictimView
from .request import Request, Sequence, SequenceStatus
from .step_plan import StepPlan
from .swap import Swap


class Room(Enum):
    """Whether there are blocks for a sequence: now, not in this step, or never, since it outgrows the pool alone."""

    MADE = auto()
    NOT_NOW = auto()
    NEVER = auto()


class Preemption:
    """Works on the scheduler's queues: moves victims from `running` to the head of `waiting`, or to `parked`."""

    def __init__(
        self,
        running: dict[Sequence, None],
        waiting: deque[Sequence],
        parked: dict[Sequence, None],
        manager: KVCacheManager,
        swap: Swap,
        policy: Policy,
        log: EventLog,
        config: EngineConfig,
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._parked = parked
        self._manager = manager
        self._swap = swap
        self._policy = policy
        self._log = log
        self._max_preemptions = config.max_preemptions

    def make_room(self, sequence: Sequence, num_tokens: int, planned: set[Request], plan: StepPlan) -> Room:
        """Preempt others until the blocks that `num_tokens` tokens of `sequence` need are free."""
        manager = self._manager
        while (needs := manager.blocks_to_reserve(sequence, num_tokens)) > manager.pool.num_free:
            victims = {s.request for s in self._running} - planned - {sequence.request}
            siblings = [s for s in self._running if s is not sequence]
            if victims:
                request = self._choose_victim(victims)
                self.preempt([s for s in request.sequences if s in self._running], sequence, needs, plan)
            elif planned:
                return Room.NOT_NOW
            elif self.drop_a_waiting_table(sequence, needs, plan):
                plan.num_preempted += 1
            elif siblings:  # a request whose branches do not fit together runs them in turn
                self.preempt(siblings[-1:], sequence, needs, plan)
            else:
                return Room.NEVER
        return Room.MADE

    def preempt(self, victims: list[Sequence], sequence: Sequence, needs: int, plan: StepPlan) -> None:
        """Take the blocks of sequences of one request for `sequence`, which needs `needs` of them."""
        request = victims[0].request
        swap = self._swap.can_swap_out(victims)
        computed = [victim.num_computed_tokens if swap else 0 for victim in victims]
        mode = "swap" if swap else "recompute"
        cause = self._emit(victims, computed, mode, sequence, needs, sequence.last_event)
        for victim, kept in reversed(list(zip(victims, computed, strict=True))):
            del self._running[victim]
            victim.status, victim.last_event, victim.num_computed_tokens = SequenceStatus.PREEMPTED, cause, kept
            if swap:
                plan.swap_out += self._swap.swap_out(victim, cause)
                plan.swapped_out.append(victim)
            else:
                self._manager.free(victim, Why.PREEMPTED, cause)
            if victim.candidates:
                self._parked[victim] = None
            else:
                self._waiting.appendleft(victim)
        request.num_preemptions += 1
        plan.num_preempted += 1

    def drop_a_waiting_table(self, sequence: Sequence, needs: int, plan: StepPlan) -> bool:
        """The last resort: take the shared blocks that a swapped-out sequence still holds. False if none does."""
        queued = [*self._parked, *self._waiting]
        holders = [s for s in queued if s.name in self._manager.tables and s is not sequence]
        if holders:
            self.drop_blocks(holders[-1], sequence, needs, plan, sequence.last_event)
        return bool(holders)

    def drop_blocks(self, victim: Sequence, sequence: Sequence, needs: int, plan: StepPlan, cause: int) -> None:
        """Free all blocks of a swapped-out sequence, here and on the host; it is computed again."""
        if victim in plan.swapped_out:  # its host blocks are free again: nothing may be moved into them
            hosts = {on_host(block) for block in self._manager.tables[victim.name] if block < 0}
            plan.swap_out = [move for move in plan.swap_out if move.destination not in hosts]
            plan.swapped_out.remove(victim)
        victim.last_event = self._emit([victim], [0], "recompute", sequence, needs, cause)
        victim.num_computed_tokens = 0
        self._manager.free(victim, Why.PREEMPTED, victim.last_event)

    def _choose_victim(self, victims: set[Request]) -> Request:
        """Ask the policy, offering requests that were preempted too often only if there are no others."""
        views = []
        offered = [r for r in victims if r.num_preemptions < self._max_preemptions] or victims
        for request in sorted(offered, key=lambda r: r.arrival):
            sequences = [s for s in request.sequences if s in self._running]
            views.append(
                VictimView(
                    request_id=request.request_id,
                    arrival=request.arrival,
                    urgency=request.urgency,
                    num_computed_tokens=sum(s.num_computed_tokens for s in sequences),
                    blocks_freed=self._manager.blocks_freed_by(sequences),
                    num_preemptions=request.num_preemptions,
                )
            )
        chosen = self._policy.choose_victim(views)
        by_id = {request.request_id: request for request in offered}
        if chosen not in by_id:
            warnings.warn(f"the policy chose victim {chosen!r}, not a candidate; the newest gives way", stacklevel=2)
            chosen = views[-1].request_id
        return by_id[chosen]

    def _emit(
        self, victims: list[Sequence], computed: list[int], mode: str, sequence: Sequence, needs: int, cause: int
    ) -> int:
        return self._log.emit(
            ev.RequestPreempted,
            Why.OUT_OF_BLOCKS,
            cause,
            request=victims[0].request.request_id,
            sequences=[victim.name for victim in victims],
            mode=mode,
            for_sequence=sequence.name,
            needs=needs,
            free=self._manager.pool.num_free,
            num_computed_tokens=computed,
            lost_tokens=sum(victim.num_computed_tokens for victim in victims) - sum(computed),
        )
