"""Runner: carries out a step's plan. ModelRunner with a model, ScriptedRunner without tensors.

    StepPlan                       flat batch                      logits            results
    moves, copies                  token_ids  [15]                 [2, vocab]        one per scheduled
    A 14 tokens from 0   ---->     positions  [15]       ---->     (last rows) ---->  sequence: tokens,
    B  1 token  from 74            AttentionMetadata                                  or a beam's candidates

Data moves in one order: swap-out, swap-in, copies, then each layer writes its keys and values and attends. No block is
source and destination of one launch, or destination twice; the scheduler's plans keep to that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from .attention import AttentionMetadata
from .batch import Batch
from .beam_search import Candidate
from .decode_graphs import DecodeGraphs
from .freed_memory import keep_freed_memory
from .kv_cache import KVCache
from .models.loader import LoadedModel
from .request import Sequence
from .sampler import Sample, Sampler, SequenceResult, num_logits
from .step_plan import ScheduledSequence, StepPlan


@dataclass(slots=True)
class Launch:
    """A plan made ready to run. `grid` and `tile` describe the attention launch of each layer."""

    plan: StepPlan
    grid: list[int]
    tile: int = 0
    batch: Batch | None = None


class Runner(Protocol):
    """What the engine needs of whatever computes tokens."""

    def prepare(self, plan: StepPlan) -> Launch:
        """Lay out the batch; nothing is computed or moved yet."""

    def execute(self, launch: Launch) -> list[SequenceResult]:
        """Move, compute, sample: one result for each scheduled sequence."""


class ModelRunner:
    """Runs a model over the paged cache on one device."""

    def __init__(
        self,
        loaded: LoadedModel,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        device: torch.device,
        seed: int,
    ) -> None:
        self.loaded = loaded
        self.cache = KVCache(loaded.spec, num_blocks, num_host_blocks, block_size, device)
        self._block_size = block_size
        self._device = device
        keep_freed_memory(device)
        self.sampler = Sampler(seed, loaded.attention.kernels.layer_ops)
        self.graphs: DecodeGraphs | None = None

    def prepare(self, plan: StepPlan) -> Launch:
        """Flatten the plan: all sequences' tokens one after the other, tables padded to the longest."""
        items = plan.scheduled
        if not items:
            return Launch(plan, [])
        counts = np.array([item.num_tokens for item in items])
        seq_lens = np.array([item.start for item in items]) + counts
        ends = counts.cumsum()
        token_ids = [token for item in items for token in item.sequence.token_ids[item.start :][: item.num_tokens]]
        positions = np.arange(ends[-1]) + np.repeat(seq_lens - ends, counts)
        tables = np.zeros((len(items), max(len(item.block_table) for item in items)), dtype=np.int32)
        for row, item in zip(tables, items, strict=True):
            row[: len(item.block_table)] = item.block_table
        blocks = tables[np.repeat(np.arange(len(items)), counts), positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size
        is_decode = all(item.num_tokens == 1 == num_logits(item) for item in items)
        sizes = plan.num_tokens, len(items), int(counts.max()), int(seq_lens.max())
        if is_decode and self.graphs is not None:
            sizes = self.graphs.sizes(len(items))
        launch, grid = self.loaded.attention.choose_launch(*sizes, self.loaded.spec.dtype.itemsize)
        metadata = AttentionMetadata(
            query_start_loc=self._tensor(np.concatenate([[0], ends]), torch.int32),
            seq_lens=self._tensor(seq_lens, torch.int32),
            block_tables=self._tensor(tables, torch.int32),
            slot_mapping=self._tensor(slots, torch.int64),
            launch=launch,
            grid=grid,
        )
        wanted = [row for item, end in zip(items, ends, strict=True) for row in range(end - num_logits(item), end)]
        batch = Batch(
            self._tensor(np.array(token_ids), torch.int64),
            self._tensor(positions, torch.int64),
            metadata,
            self._tensor(np.array(wanted), torch.int64),
            is_decode,
        )
        return Launch(plan, grid, launch.tile if launch else 0, batch)

    @torch.inference_mode()
    def execute(self, launch: Launch) -> list[SequenceResult]:
        """One forward pass over the flat batch."""
        self._move_blocks(launch.plan)
        if launch.batch is None:
            return []
        if self.graphs is not None and launch.batch.is_decode and launch.batch.metadata.watch is None:
            logits = self.graphs.logits(launch.batch, self.forward)
        else:
            logits = self.forward(launch.batch)
        return self.sampler.results(launch.plan, logits)

    def forward(self, batch: Batch) -> torch.Tensor:
        """The model's logits [rows, vocab_size]."""
        model: Callable[..., torch.Tensor] = self.loaded.model
        return model(batch.token_ids, batch.positions, self.cache, batch.metadata, batch.logit_rows)

    def _move_blocks(self, plan: StepPlan) -> None:
        kv, host = self.cache.kv, self.cache.host
        for source, destination, moves in ((kv, host, plan.swap_out), (host, kv, plan.swap_in), (kv, kv, plan.copies)):
            if moves:
                ids = torch.tensor(moves, dtype=torch.int64, device=self._device).T.contiguous()
                self.loaded.attention.kernels.move_blocks(source, destination, ids[0], ids[1])

    def _tensor(self, array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array).to(device=self._device, dtype=dtype)


class ScriptedRunner:
    """Computes nothing: `next_token(sequence, sample_index)` says what comes out.

    Scheduler, cache and events are the real ones, at thousands of sequences a step: for soaks, simulations and tests.
    """

    def __init__(self, next_token: Callable[[Sequence, int], int]) -> None:
        self._next_token = next_token

    def prepare(self, plan: StepPlan) -> Launch:
        """There is nothing to lay out."""
        return Launch(plan, [])

    def execute(self, launch: Launch) -> list[SequenceResult]:
        """Ask the script."""
        return [self._result(item) for item in launch.plan.scheduled]

    def _result(self, item: ScheduledSequence) -> SequenceResult:
        """The script's tokens for samples 0, 1, ...; for a beam they are its candidates, likeliest first."""
        sequence, search = item.sequence, item.sequence.request.search
        if search is not None and item.num_samples:
            tokens = dict.fromkeys(self._next_token(sequence, rank) for rank in range(search.num_candidates))
            return SequenceResult(candidates=[Candidate(token, -1.0 - rank) for rank, token in enumerate(tokens)])
        indices = range(sequence.sample_index, sequence.sample_index + item.num_samples)
        return SequenceResult([Sample(self._next_token(sequence, index)) for index in indices])
