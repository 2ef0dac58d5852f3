"""Policies decide, the engine mutates and emits.

A policy is a pure function of a read-only view. It cannot touch a block, and an answer that the view did not offer is
not followed. Give your own to `EngineConfig(policy="my_module:MyPolicy")`; derive it from `DefaultPolicy` to change one
decision only.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from .errors import ConfigError


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """May this waiting sequence start? All numbers are blocks.

    `needs` new blocks for all its tokens, `free` now, of which `watermark` are kept for the growth of running sequences
    and `promised` are spoken for by running sequences whose prompts are not computed yet.
    """

    needs: int
    free: int
    watermark: int
    promised: int


@dataclass(frozen=True, slots=True)
class VictimView:
    """A running request that could be preempted. `blocks_freed` counts only blocks that no other request holds.

    A smaller `urgency` is more urgent: the priority, aged.
    """

    request_id: str
    arrival: int
    urgency: float
    num_computed_tokens: int
    blocks_freed: int
    num_preemptions: int


class EvictionView(Protocol):
    """The cached blocks, least recently used first. `len(view)` is their number."""

    def __iter__(self) -> Iterator[int]: ...
    def __len__(self) -> int: ...
    def __contains__(self, block: object) -> bool: ...


class Policy(Protocol):
    """The three decisions of the engine that can be argued about."""

    def admit(self, view: AdmissionView) -> bool:
        """Whether the first waiting sequence starts now; asked only if it fits and something else runs."""
        ...

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        """The id of the request that gives its blocks back; never called without a candidate."""
        ...

    def choose_eviction(self, cached: EvictionView) -> int:
        """The cached block that is overwritten; never called without one."""
        ...


class DefaultPolicy:
    """Admit what fits beside the watermark; preempt the newest request; evict the least recently used block."""

    def admit(self, view: AdmissionView) -> bool:
        """Fits, with what is promised to others and the watermark left untouched."""
        return view.needs + view.watermark + view.promised <= view.free

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        """First come, first served: who came last gives way (PagedAttention paper, section 4.5)."""
        return max(candidates, key=lambda view: view.arrival).request_id

    def choose_eviction(self, cached: EvictionView) -> int:
        """Least recently used; a sequence releases its last block first, so chain tails go before their heads."""
        return next(iter(cached))


class LowestPriority(DefaultPolicy):
    """The least urgent request gives way, the newest of equals."""

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        """Largest urgency number."""
        return max(candidates, key=lambda view: (view.urgency, view.arrival)).request_id


class FewestLostTokens(DefaultPolicy):
    """The request with the least computed gives way: the least to compute again."""

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        """Fewest computed tokens, the newest of equals."""
        return min(candidates, key=lambda view: (view.num_computed_tokens, -view.arrival)).request_id


class MostBlocksFreed(DefaultPolicy):
    """The request whose blocks help most gives way: the fewest preemptions."""

    def choose_victim(self, candidates: Sequence[VictimView]) -> str:
        """Most blocks really freed, the newest of equals."""
        return max(candidates, key=lambda view: (view.blocks_freed, view.arrival)).request_id


def load_policy(spec: str) -> Policy:
    """An instance of the class named by "module:Class"; "" gives the default.

    Raises ConfigError if there is no such class, or it lacks one of the decisions.
    """
    if not spec:
        return DefaultPolicy()
    module_name, _, class_name = spec.partition(":")
    try:
        policy = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"policy {spec!r} cannot be loaded ({error}): give it as 'module:Class'") from error
    missing = [
        name for name in ("admit", "choose_victim", "choose_eviction") if not callable(getattr(policy, name, None))
    ]
    if missing:
        raise ConfigError(
            f"policy {spec!r} lacks {', '.join(missing)}: derive it from pagelens.engine.policies.DefaultPolicy"
        )
    return cast(Policy, policy)
