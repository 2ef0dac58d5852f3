"""The seam between the model and the kernels: which kernels run, and what a step tells them."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pagelens.kernels import layer_ops, reference
from pagelens.kernels.availability import TritonStatus, numba_obstacle, triton_status
from pagelens.kernels.launch import LaunchConfig, choose_launch
from pagelens.kernels.layer_ops import FewRows, LayerOps

from .errors import ConfigError


@dataclass(frozen=True)
class Kernels:
    """The kernels of `kernels/`, in one implementation. `why` is a sentence for people."""

    name: str
    why: str
    interpreted: bool
    paged_attention: Callable[..., Tensor]
    write_kv: Callable[..., None]
    move_blocks: Callable[..., None]
    layer_ops: LayerOps = layer_ops
    few_rows: FewRows | None = None
    compile_for: Callable[[torch.dtype], float] | None = None

    def compiled_for(self, dtype: torch.dtype) -> "Kernels":
        """Made ready for a cache of this dtype, if that takes a compiler; `why` then says how long it took."""
        if self.compile_for is None:
            return self
        return replace(self, why=f"{self.why} (compiled, or loaded from a cache, in {self.compile_for(dtype):.1f} s)")


def select_kernels(name: str, device: torch.device) -> Kernels:
    """The implementation asked for by `EngineConfig.kernel`.

    "auto" is the fastest one that runs here: Triton's compiled on a GPU, Numba's on a CPU, torch's where these are
    missing; then it says why.

    Without a GPU the Triton kernels run under Triton's interpreter. That must be decided before anything imports
    triton, so this asks for it wherever it is not too late, for whoever will want to watch them in this process.

    Raises:
        ConfigError: "triton" or "numba" was asked for by name and cannot run; the message names the remedy.
    """
    if name == "torch":
        return _torch_kernels('kernel="torch" was asked for')
    if device.type == "cpu":
        _ask_for_interpreter()
    if name == "triton" or (name == "auto" and device.type != "cpu"):
        status = triton_status()
        if status.available:
            return _triton_kernels(status)
        if name == "triton":
            raise ConfigError(f'kernel="triton" cannot run: {status.reason}')
        return _torch_kernels(status.reason)
    obstacle = numba_obstacle(device)
    if not obstacle:
        because = 'kernel="numba" was asked for' if name == "numba" else f"the model runs on the {device.type.upper()}"
        return _numba_kernels(f"{because}, so its kernels are machine code that Numba makes for it")
    if name == "numba":
        raise ConfigError(f'kernel="numba" cannot run: {obstacle}')
    return _torch_kernels(obstacle)


def kernel_to_watch() -> tuple[str, str]:
    """The kernel of the pages and consoles that show how it walks, "triton" where it can run, and why if it is not."""
    if not torch.cuda.is_available():
        _ask_for_interpreter()
    status = triton_status()
    return ("triton", "") if status.available else ("auto", status.reason)


def _ask_for_interpreter() -> None:
    if "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")


def _triton_kernels(status: TritonStatus) -> Kernels:
    from pagelens.kernels import kv_ops, paged_attention

    return Kernels(
        name="triton",
        why=status.reason,
        interpreted=status.interpreted,
        paged_attention=paged_attention.paged_attention,
        write_kv=kv_ops.write_kv,
        move_blocks=kv_ops.move_blocks,
    )


def _numba_kernels(why: str) -> Kernels:
    from pagelens.kernels import numba_few_rows, numba_layer_ops
    from pagelens.kernels import numba_paged_attention as kernels

    return Kernels(
        name="numba",
        why=why,
        interpreted=False,
        paged_attention=kernels.paged_attention,
        write_kv=kernels.write_kv,
        move_blocks=reference.move_blocks,
        layer_ops=numba_layer_ops,
        few_rows=numba_few_rows,
        compile_for=kernels.compile_for,
    )


def _torch_kernels(why: str) -> Kernels:
    return Kernels("torch", why, False, reference.paged_attention, reference.write_kv, reference.move_blocks)


@dataclass(slots=True)
class AttentionMetadata:
    """One step's flat batch, as the kernels see it.

        sequences           A (14 of a prompt)    B (1)   C (1)
        query_start_loc     0                     14      15      16
        seq_lens            14                    75      121             tokens of context, these included
        slot_mapping        where each of the 16 tokens' K and V go
        block_tables        [3, max_blocks], padded with 0

    `launch` are the tiles of the attention kernel, None on the torch path; `grid` what a viewer is told about it.
    `watch` is there while somebody looks on: given the kernels, it returns what runs in the attention kernel's place.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    slot_mapping: Tensor
    launch: LaunchConfig | None
    grid: list[int]
    watch: Callable[[Kernels], Callable[..., Tensor]] | None = None


class Attention:
    """Writes a layer's new keys and values, then attends. The same object serves all layers of a model."""

    def __init__(
        self,
        kernels: Kernels,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        softcap: float | None = None,
    ) -> None:
        self.kernels = kernels
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scale = scale
        self.softcap = softcap

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_layer: Tensor,
        metadata: AttentionMetadata,
        sliding_window: int | None,
    ) -> Tensor:
        """Query [num_tokens, num_heads, head_dim], key and value [num_tokens, num_kv_heads, head_dim] -> like query."""
        self.kernels.write_kv(key, value, kv_layer, metadata.slot_mapping)
        options: dict[str, Any] = {} if metadata.launch is None else {"config": metadata.launch}
        attend = self.kernels.paged_attention if metadata.watch is None else metadata.watch(self.kernels)
        return attend(
            query.to(kv_layer.dtype),
            kv_layer,
            metadata.block_tables,
            metadata.query_start_loc,
            metadata.seq_lens,
            scale=self.scale,
            sliding_window=sliding_window,
            softcap=self.softcap,
            **options,
        )

    def choose_launch(
        self, num_tokens: int, num_seqs: int, max_query_len: int, max_context: int, element_size: int
    ) -> tuple[LaunchConfig | None, list[int]]:
        """The tiles for a batch of these sizes and the resulting grid (programs along tiles, KV heads, splits)."""
        if self.kernels.name != "triton":
            return None, [num_seqs]
        launch = choose_launch(
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            max_query_len=max_query_len,
            max_context=max_context,
            group=self.num_heads // self.num_kv_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            element_size=element_size,
            interpreted=self.kernels.interpreted,
        )
        return launch, list(launch.grid(num_tokens, num_seqs, self.num_kv_heads))
