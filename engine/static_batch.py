"""Static batching: a batch starts when the one before it has ended, and ends with its longest answer.

    step      1 2 3 4 5 6                          padding of the prompts
    row A     a a . . . .        idle: A ended     [. . . A A A]
    row B     b b b b b b                          [B B B B B B]
    row C     c c c . . .        idle: C ended     [. . . . . C]

What continuous batching (Orca, OSDI 2022) does away with.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StaticBatchUse:
    """Row-steps (one row of a batch in one step) and prompt slots of a run, and those of them that served nobody."""

    num_steps: int = 0
    row_steps: int = 0
    idle_row_steps: int = 0
    prompt_slots: int = 0
    padding_slots: int = 0

    @property
    def idle_share(self) -> float:
        """Share of the row-steps in which a row had ended and waited for the others."""
        return self.idle_row_steps / self.row_steps if self.row_steps else 0.0

    @property
    def padding_share(self) -> float:
        """Share of the prompt slots that were padding."""
        return self.padding_slots / self.prompt_slots if self.prompt_slots else 0.0


def static_batches(lengths: Sequence[tuple[int, int]], batch_size: int) -> StaticBatchUse:
    """Serve requests of (prompt, output) tokens, in order, `batch_size` at a time."""
    steps = rows = idle = prompts = padding = 0
    for first in range(0, len(lengths), batch_size):
        batch = lengths[first : first + batch_size]
        longest_prompt = max(prompt for prompt, _ in batch)
        longest_output = max(output for _, output in batch)
        steps += longest_output
        rows += len(batch) * longest_output
        idle += sum(longest_output - output for _, output in batch)
        prompts += len(batch) * longest_prompt
        padding += sum(longest_prompt - prompt for prompt, _ in batch)
    return StaticBatchUse(steps, rows, idle, prompts, padding)
