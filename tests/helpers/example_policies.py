"""Policies that tests load by name."""

from collections.abc import Sequence

from pagelens.engine.policies import DefaultPolicy, EvictionView, VictimView


class OldestGivesWay(DefaultPolicy):
    """The opposite of first come, first served."""

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        return min(candidates, key=lambda view: view.arrival).request_id


class Nonsense(DefaultPolicy):
    """Answers what the view did not offer."""

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        return "nobody"

    def choose_eviction(self, cached: EvictionView) -> int:
        return -7
