"""DecodeGraphs: decode steps as CUDA graphs, which replay what was launched once.

A decode step launches hundreds of kernels, and of a small model each is over before Python can launch the next. A CUDA
graph launches all of them at once, but with the addresses and grids of the step that was recorded. So there is one
recording for each of a few batch sizes, with tensors of its own, into which a step is copied:

    a step of 5 sequences        the recording for 8
    token_ids   [5]      ---->   token_ids   [8]      the last three: whatever token was there, a context
    seq_lens    [5]      ---->   seq_lens    [8]      of one token, and a slot of -1, where nothing is written
    block_tables [5, 9]  ---->   block_tables [8, blocks of the longest sequence that is allowed]
    logits      [5]      <----   logits      [8]

Prefill is computed kernel by kernel: it comes in too many sizes, and its kernels take longer than their launches. (vLLM
and nano-vllm record decode steps likewise.)
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .attention import AttentionMetadata
from .batch import Batch
from .block_table import blocks_needed
from .config import EngineConfig
from .models.llama import LlamaModel
from .models.loader import LoadedModel

Forward = Callable[[Batch], Tensor]
"""A model's forward pass: a batch -> logits [rows, vocab_size]."""

Record = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Runs a function, whose tensors keep their places; returns its result, and what fills it again."""


@dataclass(frozen=True)
class Recording:
    """The tensors of one batch size; `replay` reads `batch` and fills `logits`."""

    batch: Batch
    logits: Tensor
    replay: Callable[[], None]

    def fill(self, step: Batch) -> None:
        """Copy a step's tensors into ours, and padding behind them."""
        count, own, new = len(step.token_ids), self.batch, step.metadata
        own.token_ids[:count] = step.token_ids
        own.positions[:count] = step.positions
        own.metadata.seq_lens[:count] = new.seq_lens
        own.metadata.slot_mapping[:count] = new.slot_mapping
        own.metadata.block_tables[:count, : new.block_tables.shape[1]] = new.block_tables
        own.metadata.seq_lens[count:] = 1
        own.metadata.slot_mapping[count:] = -1


def can_record(loaded: LoadedModel) -> bool:
    """Whether its decode steps can be CUDA graphs: our own models' can, with compiled kernels.

    A model of `transformers` may choose by the values of tensors what it launches.
    """
    kernels = loaded.attention.kernels
    return kernels.name == "triton" and not kernels.interpreted and isinstance(loaded.model, LlamaModel)


class DecodeGraphs:
    """Recordings of decode batches of up to `config.max_num_seqs` sequences of up to `max_model_len` tokens.

    All are made at once, since recording one takes longer than a step. If one cannot be made, a warning says so and
    there are none.
    """

    @torch.inference_mode()
    def __init__(
        self,
        forward: Forward,
        loaded: LoadedModel,
        config: EngineConfig,
        max_model_len: int,
        device: torch.device,
        record: Record | None = None,
    ) -> None:
        self._loaded = loaded
        self._most = config.max_num_seqs
        self._max_model_len = max_model_len
        self._max_blocks = blocks_needed(max_model_len, config.block_size)
        self._device = device
        self._recordings: dict[int, Recording] = {}
        record = record or cuda_graph_recorder()
        try:
            for size in sorted({self.sizes(count)[0] for count in range(1, self._most + 1)}):
                batch = self._make_batch(size)
                self._recordings[size] = Recording(batch, *record(partial(forward, batch)))
        except RuntimeError as error:
            self._recordings = {}
            warnings.warn(
                f"a decode step of {size} sequences cannot be recorded as a CUDA graph, so kernels are launched one by "
                f"one: {error}",
                stacklevel=2,
            )

    def sizes(self, num_seqs: int) -> tuple[int, int, int, int]:
        """Of the recording for so many sequences, as `Attention.choose_launch` takes them: good for any context.

        Beams can make more sequences in a step than may be admitted: there is no recording for them.
        """
        size = num_seqs if num_seqs > self._most else min(self._most, 1 << (num_seqs - 1).bit_length())
        return size, size, 1, self._max_model_len

    def logits(self, step: Batch, forward: Forward) -> Tensor:
        """Of a decode batch [num_seqs, vocab_size], valid until the next call; of `forward` where none is recorded."""
        count = len(step.token_ids)
        recording = self._recordings.get(self.sizes(count)[0])
        if recording is None:
            return forward(step)
        recording.fill(step)
        recording.replay()
        return recording.logits[:count]

    def _make_batch(self, size: int) -> Batch:
        def whole(count: int, dtype: torch.dtype, value: int = 0) -> Tensor:
            return torch.full((count,), value, dtype=dtype, device=self._device)

        launch, grid = self._loaded.attention.choose_launch(*self.sizes(size), self._loaded.spec.dtype.itemsize)
        metadata = AttentionMetadata(
            query_start_loc=torch.arange(size + 1, dtype=torch.int32, device=self._device),
            seq_lens=whole(size, torch.int32, 1),
            block_tables=whole(size * self._max_blocks, torch.int32).view(size, -1),
            slot_mapping=whole(size, torch.int64, -1),
            launch=launch,
            grid=grid,
        )
        rows = torch.arange(size, device=self._device)
        return Batch(whole(size, torch.int64), whole(size, torch.int64), metadata, rows, is_decode=True)


def cuda_graph_recorder() -> Record:
    """Recordings share one pool of memory, since no two of them run at once."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        stream, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            run()  # compiles what is not compiled yet, which cannot be recorded
        stream.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            # "thread_local": another thread may be loading a model meanwhile, which asks for memory
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = run()
        except RuntimeError:
            torch.cuda.set_stream(stream)  # a recording that fails can leave its own stream in place
            raise
        return result, graph.replay

    return record
