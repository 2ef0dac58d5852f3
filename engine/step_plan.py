"""StepPlan: what one step does. The scheduler writes it, the runner carries it out."""

from dataclasses import dataclass, field

from .block_table import BlockTable
from .kv_cache_manager import BlockCopy
from .request import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """Compute `num_tokens` tokens of `sequence` from position `start`, then draw `num_samples` next tokens.

    `num_samples` is 0 while the prompt is not finished, `n` on the step that finishes it, 1 afterwards; for a beam it
    is not 0 when candidates are wanted. `block_table`
    is the sequence's own table, not a copy.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    num_samples: int
    block_table: BlockTable


@dataclass(slots=True)
class StepPlan:
    """What one step does, data first: `swap_out` (device to host), `swap_in`, `copies`, then the tokens.

    `swapped_out` are the sequences behind the first. `event` is the `seq` of the plan's `StepPlanned`;
    `plan_ns` and `launch_ns` are how long the phases took.
    """

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    swap_out: list[BlockCopy] = field(default_factory=list)
    swap_in: list[BlockCopy] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    swapped_out: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    num_tokens: int = 0
    num_preempted: int = 0
    event: int = -1
    plan_ns: int = 0
    launch_ns: int = 0
