"""Policies of your own: who gives way when no block is free."""

from collections.abc import Sequence

from pagelens.engine.policies import DefaultPolicy, VictimView


class LeastLost(DefaultPolicy):
    """Preempt the request with the fewest computed tokens for each block it would free."""

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        """A request that would free no block is the last choice."""
        return min(candidates, key=_tokens_per_block).request_id


class MostFreed(DefaultPolicy):
    """Preempt the request that frees the most blocks, so that few are disturbed."""

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        """Blocks that other requests hold too do not count as freed."""
        return max(candidates, key=lambda view: view.blocks_freed).request_id


def _tokens_per_block(view: VictimView) -> float:
    return view.num_computed_tokens / view.blocks_freed if view.blocks_freed else float("inf")
