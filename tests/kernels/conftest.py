"""Batches in a poisoned cache, and launches whose programs run in another order."""

from paged_batches import error, make_batch, program_order

__all__ = ["error", "make_batch", "program_order"]
