"""Contiguous memory, what PagedAttention is compared with: one piece of address space per request, reserved whole.

    slots    0         8         16        24        32
             |A A A a a . . .|B B b .|       |C C C c|   |      small: will be used    . never used
                                      a hole          a hole    12 free slots, yet nothing of 10 fits

Three systems differ in what they reserve (paper, section 6.1): the longest request that the model allows ("maximum"),
prompt and output rounded up to a power of two ("power of two"), what will truly be used ("true length", which nobody
knows in advance). Placement is real: first fit, so holes come about as they would. The paper uses a buddy allocator.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .errors import ConfigError
from .waste import SlotSplit, StepWaste

Reservation = Callable[[int, int], int]
"""Slots to reserve for a request of (prompt tokens, output tokens)."""


def slots_used(num_prompt: int, num_output: int) -> int:
    """Slots that a request fills in the end: the last token is never written, since nothing follows it."""
    return num_prompt + num_output - 1


def maximum(max_model_len: int) -> Reservation:
    """Reserve for the longest request there may be: Orca (Max) in the paper."""
    return lambda num_prompt, num_output: max_model_len


def power_of_two(max_model_len: int) -> Reservation:
    """Round the output up to a power of two, within the maximum: Orca (Pow2) in the paper."""
    return lambda num_prompt, num_output: min(max_model_len, num_prompt + (1 << (num_output - 1).bit_length()))


def true_length() -> Reservation:
    """Reserve exactly what will be used: Orca (Oracle) in the paper."""
    return slots_used


class ContiguousMemory:
    """`num_slots` slots, given out in single pieces by first fit. `holes` are (start, length), in order of start."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self.holes = [(0, num_slots)]

    def allocate(self, length: int) -> int | None:
        """Start of a piece of `length` slots, at the beginning of the first hole that is long enough; None if none."""
        for number, (start, free) in enumerate(self.holes):
            if free >= length:
                self.holes[number : number + 1] = [(start + length, free - length)] if free > length else []
                self.num_free -= length
                return start
        return None

    def release(self, start: int, length: int) -> None:
        """Give a piece back; it unites with the holes beside it."""
        self.num_free += length
        insort(self.holes, (start, length))
        number = self.holes.index((start, length))
        for left in (number, number - 1):  # first with the hole after it, then with the one before
            if 0 <= left < len(self.holes) - 1:
                (first, size), (second, more) = self.holes[left : left + 2]
                if first + size == second:
                    self.holes[left : left + 2] = [(first, size + more)]


@dataclass(eq=False, slots=True)
class Job:
    """A request and its piece of memory, `reserved` slots from `start` on."""

    name: str
    num_prompt: int
    num_output: int
    reserved: int
    start: int = -1
    num_computed: int = 0

    @property
    def num_uncomputed(self) -> int:
        """Tokens known and not computed: the rest of the prompt, or the newest token."""
        return max(1, self.num_prompt - self.num_computed)

    @property
    def slots_used(self) -> int:
        """Slots filled at the end."""
        return slots_used(self.num_prompt, self.num_output)


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computed: `num_tokens` new tokens attending to `num_context_tokens`; who ended with it."""

    num_tokens: int
    num_context_tokens: int
    finished: list[str]


class ContiguousServer:
    """Serves requests of known lengths from contiguous memory, by the rule of the paged engine's scheduler.

    Running requests that need one token go first, then chunks of prompts, then waiting ones in order of arrival, within
    `max_num_batched_tokens` and `max_num_seqs`. The first that does not fit waits, and all behind it. Nothing is ever
    preempted: a request has all its memory before it starts.
    """

    def __init__(
        self, num_slots: int, reservation: Reservation, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        self.memory = ContiguousMemory(num_slots)
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.steps: list[StepWaste] = []
        self._reservation = reservation
        self._budget = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def add(self, name: str, num_prompt: int, num_output: int) -> None:
        """Queue a request. Raises ConfigError if its reservation exceeds the whole memory."""
        reserved = self._reservation(num_prompt, num_output)
        if reserved > self.memory.num_slots:
            raise ConfigError(f"request {name} reserves {reserved} slots, but there are {self.memory.num_slots}")
        self.waiting.append(Job(name, num_prompt, num_output, reserved))

    def step(self) -> StepWork:
        """Compute one step's tokens, measure the memory, give back what has ended."""
        planned: list[Job] = []
        left = self._budget
        for job in sorted(self.running, key=lambda job: job.num_uncomputed > 1):
            if left:
                left -= self._compute(job, left)
                planned.append(job)
        found_no_hole = False
        while left and self.waiting and len(self.running) < self._max_num_seqs and not found_no_hole:
            job = self.waiting[0]
            start = self.memory.allocate(job.reserved)
            found_no_hole = start is None
            if start is not None:
                job.start = start
                self.running.append(self.waiting.popleft())
                left -= self._compute(job, left)
                planned.append(job)
        self.steps.append(StepWaste(len(self.steps), found_no_hole, self._split(found_no_hole)))
        finished = [job for job in planned if job.num_computed == job.slots_used]
        for job in finished:
            self.running.remove(job)
            self.memory.release(job.start, job.reserved)
        context = sum(job.num_computed for job in planned)
        return StepWork(self._budget - left, context, [job.name for job in finished])

    def _compute(self, job: Job, budget: int) -> int:
        count = min(job.num_uncomputed, budget)
        job.num_computed += count
        return count

    def _split(self, found_no_hole: bool) -> SlotSplit:
        tokens = sum(job.num_computed for job in self.running)
        used = sum(job.slots_used for job in self.running)
        free = self.memory.num_free
        scattered = found_no_hole and self.waiting[0].reserved <= free
        return SlotSplit(
            tokens=tokens,
            reservation=used - tokens,
            unfilled=self.memory.num_slots - free - used,
            external=free if scattered else 0,
            free=0 if scattered else free,
        )
