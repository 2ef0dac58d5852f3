"""StaticScheduler: static batching on paged memory, what continuous batching (Orca, OSDI 2022) does away with.

    step      1 2 3 4 5 6 7          a batch is admitted when the one before it has ended
    A         a a
    B         b b b b b
    C                   c c          C waits for B, although A's place is free from step 3 on

All else is the engine's: the two can be compared step by step.
"""

from .events import Why
from .scheduler import Obstacle, Scheduler
from .step_plan import StepPlan


class StaticScheduler(Scheduler):
    """Admits only while nothing runs. What ends early gives its blocks back at once (rows of a tensor would not)."""

    def _admit_waiting(self, plan: StepPlan) -> Obstacle:
        if self.waiting and self.running:
            return Obstacle(Why.WAITS_FOR_BATCH)
        return super()._admit_waiting(plan)
