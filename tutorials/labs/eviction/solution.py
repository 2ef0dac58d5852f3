"""Lab: eviction. Which cached block is overwritten when a new one is needed?

Write `choose_eviction` so that prompts find more of their tokens in the prefix
cache than with the default, which overwrites the least recently used block.
Check it at any time:

    pagelens lab check eviction eviction.py

The workload: three documents are asked about again and again, in random order,
and between them come long prompts that nobody ever repeats. Each of those pushes
what was cached towards eviction, useful or not.

What you see is `cached`: the ids of the cached blocks, least recently used first,
as `list(cached)`. You do not see what is in them. But you are asked again and
again, and you may remember what you saw:

    asked before   [7, 3, 9, 4, 12]             you answered 3
    asked now            [9, 4,     20, 21]

7 and 12 are gone, and you did not evict them: a prompt found them, so what is in
them was useful. 20 and 21 are new. The content of a block stays the same until you
evict it. After that its id may come back with other content.
"""

from pagelens.engine.policies import DefaultPolicy, EvictionView


class Eviction(DefaultPolicy):
    """Chooses the cached block to overwrite; one instance serves a whole run."""

    def __init__(self) -> None:
        """Prepare what you want to remember."""
        # solution:
        self.before: set[int] = set()
        self.found: set[int] = set()
        # end

    def choose_eviction(self, cached: EvictionView) -> int:
        """Return one of the block ids in `cached`, which is never empty."""
        # hint: which of these were never found by a prompt?
        # solution:
        now = list(cached)
        self.found |= self.before.difference(now)
        choice = next((block for block in now if block not in self.found), now[0])
        self.found.discard(choice)
        self.before = set(now) - {choice}
        return choice
        # end
