"""ContiguousRun: the contiguous server of `engine/contiguous.py`, told as events, so that the same map can show it.

    blocks   0  1  2  3  4  5  6  7
             A  A  A  A  .  B  B  B      A's piece is reserved whole on admission; only its first slots are ever filled
             ##########     #####

A piece is rounded up to whole blocks, the unit in which the map shows memory; it is never shared, moved or cut.
"""

import math
from collections.abc import Callable

from pagelens.engine import events as ev
from pagelens.engine.contiguous import ContiguousServer, Job, Reservation, maximum, power_of_two, true_length
from pagelens.engine.event_log import EventLog, LogHeader
from pagelens.engine.events import BlockState, Phase, Why
from pagelens.engine.request import request_name

from .scenario import ScenarioError, Setup, Submission

RESERVATIONS: dict[str, Callable[[int], Reservation]] = {
    "maximum": maximum,
    "power of two": power_of_two,
    "true length": lambda max_model_len: true_length(),
}
RESERVED = "reserved"
"""Why a block is a request's: a reason that the engine itself never has."""


class ContiguousRun:
    """Used like an engine: requests are added, and `step` serves them until nothing `has_work`."""

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        assert config.num_gpu_blocks_override is not None and config.max_model_len is not None
        self._size = config.block_size
        self._max_model_len = config.max_model_len
        exact = RESERVATIONS[setup.reservation](config.max_model_len)
        self._server = ContiguousServer(
            config.num_gpu_blocks_override * self._size,
            lambda prompt, output: math.ceil(exact(prompt, output) / self._size) * self._size,
            config.max_num_batched_tokens,
            config.max_num_seqs,
        )
        header = LogHeader(
            num_blocks=config.num_gpu_blocks_override,
            block_size=self._size,
            source="contiguous",
            capabilities=["blocks", "tables"],
            config=config.as_dict() | {"reservation": setup.reservation},
            model={"name": "scripted"},
            kernel={"name": "none", "why": "contiguous memory is simulated", "interpreted": False},
        )
        self.log = EventLog(header)
        self.num_steps = 0
        self._budget = config.max_num_batched_tokens
        self._last_event: dict[str, int] = {}

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._server.has_work

    def add(self, submission: Submission) -> None:
        """Queue a request. Raises ScenarioError or ConfigError if it can never be served."""
        prompt, output = submission.prompt, submission.params.max_tokens
        if len(prompt) + output > self._max_model_len:
            raise ScenarioError(
                f"a request of {len(prompt)} + {output} tokens exceeds max_model_len {self._max_model_len}"
            )
        request = request_name(len(self._last_event))
        name = f"{request}.0"
        self._server.add(name, len(prompt), output)
        self._last_event[name] = self.log.emit(
            ev.RequestArrived,
            Why.SUBMITTED,
            request=request,
            sequence=name,
            prompt_token_ids=prompt,
            prompt_texts=[""] * len(prompt),
            max_tokens=output,
        )

    def step(self) -> None:
        """Serve one step, and tell what happened in it."""
        log, server = self.log, self._server
        jobs = [*server.running, *server.waiting]
        before = {job: job.num_computed for job in jobs}
        running = set(server.running)
        log.step, log.phase = self.num_steps, Phase.PLAN
        ended = server.step().finished
        planned = [job for job in jobs if job.num_computed > before[job]]
        finished = [job for job in planned if job.name in ended]
        counts = [job.num_computed - before[job] for job in planned]
        starts = [before[job] for job in planned]
        for job, start, count in zip(planned, starts, counts, strict=True):
            if job not in running:
                self._admit(job)
            why = Why.NEXT_TOKEN if start >= job.num_prompt else Why.PREFILL_CHUNK
            if start < job.num_prompt == start + count:
                why = Why.PREFILL
            self._tell(job, ev.SequenceScheduled, why, start=start, num_tokens=count)
        names = [job.name for job in planned]
        cause = self._plan(names, counts, finished)
        log.phase = Phase.LAUNCH
        cause = log.emit(ev.StepLaunched, Why.SCHEDULED, cause, kernel="none", grid=[], num_tokens=sum(counts))
        cause = log.emit(ev.TokensWritten, Why.SCHEDULED, cause, sequences=names, starts=starts, counts=counts)
        log.phase = Phase.COMMIT
        grown = [job.name for job in planned if job.num_computed >= job.num_prompt]
        blank = {"token_ids": [0] * len(grown), "texts": [""] * len(grown)}
        log.emit(ev.TokensGenerated, Why.MODEL_OUTPUT, cause, sequences=grown, **blank)
        for job in finished:
            self._finish(job)
        log.emit(ev.StepCommitted, Why.SCHEDULED, cause, plan_ns=0, launch_ns=0, commit_ns=0)
        self.num_steps += 1
        log.step, log.phase = self.num_steps, Phase.IDLE

    def _admit(self, job: Job) -> None:
        self._tell(job, ev.SequenceAdmitted, Why.FITS, num_computed_tokens=0)
        for index in range(job.reserved // self._size):
            block = job.start // self._size + index
            self._tell(job, ev.BlockAllocated, RESERVED, block=block, index=index, ref_count=1, state=BlockState.USED)

    def _finish(self, job: Job) -> None:
        self._tell(job, ev.SequenceFinished, Why.MAX_TOKENS, reason="length")
        for index in reversed(range(job.reserved // self._size)):
            block, why = job.start // self._size + index, Why.SEQUENCE_FINISHED
            self._tell(job, ev.BlockReleased, why, block=block, index=index, ref_count=0, state=BlockState.BLANK)

    def _plan(self, names: list[str], counts: list[int], finished: list[Job]) -> int:
        server, size = self._server, self._size
        first = server.waiting[0] if server.waiting else None
        free = server.memory.num_free - sum(job.reserved for job in finished)  # the server has given theirs back by now
        if first is None:
            why = Why.NOTHING_WAITS
        elif server.steps[-1].waits_for_memory:
            why = Why.WAITS_FOR_BLOCKS
        elif sum(counts) == self._budget:
            why = Why.WAITS_FOR_TOKEN_BUDGET
        else:
            why = Why.WAITS_FOR_SEQUENCE_SLOT
        return self.log.emit(
            ev.StepPlanned,
            why,
            sequences=names,
            num_tokens=counts,
            budget=self._budget,
            num_waiting=len(server.waiting),
            blocked=first.name if first else "",
            needs=first.reserved // size if first else 0,
            free=free // size,
        )

    def _tell(self, job: Job, kind: type[ev.Event], why: str, **fields: object) -> None:
        """Emit an event of one sequence, which follows from its last."""
        cause = self._last_event[job.name]
        seq = self.log.emit(kind, why, cause, sequence=job.name, **fields)
        if kind in (ev.SequenceAdmitted, ev.SequenceScheduled, ev.SequenceFinished):
            self._last_event[job.name] = seq
