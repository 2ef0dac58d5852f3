"""KVCache: the one tensor that holds all keys and values, and how many blocks of it fit.

kv[block, layer, K/V, kv_head, slot, head_dim]

block 0                                             block 1
+-------------------------+-----------------------+------
| layer 0                 | layer 1               | ...
|  K            V         |  K          V         |
|  head0 head1  head0 ... |  head0 ...            |
+-------------------------+-----------------------+------
one contiguous slab of 2 * layers * kv_heads * block_size * head_dim elements: copying a block is one move
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from .config import GIB, EngineConfig
from .errors import ConfigError

CPU_POOL_BYTES = 64 << 20


@dataclass(frozen=True)
class KVCacheSpec:
    """The shape of what a model keeps per token."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def bytes_per_token(self) -> int:
        """2 (K and V) * layers * KV heads * head size * bytes per element."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def num_gpu_blocks(config: EngineConfig, spec: KVCacheSpec, device: torch.device) -> int:
    """How many blocks the pool has.

    Raises ConfigError if not even one fits.
    """
    block_bytes = spec.bytes_per_token() * config.block_size
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory_bytes is not None:
        available, source = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    elif device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        available = int(config.gpu_memory_utilization * total) - (total - free)
        source = f"gpu_memory_utilization={config.gpu_memory_utilization} of {total / GIB:.1f} GiB, less what is in use"
    else:
        if config.gpu_memory_utilization != EngineConfig.gpu_memory_utilization:
            warnings.warn(
                "gpu_memory_utilization says nothing without a GPU: "
                "size the pool by num_gpu_blocks_override or kv_cache_memory_bytes",
                stacklevel=2,
            )
        available, source = CPU_POOL_BYTES, "the default without a GPU"
    if available < block_bytes:
        raise ConfigError(
            f"the KV cache may take {available} bytes ({source}), but one block of {config.block_size} tokens takes "
            f"{block_bytes}: raise kv_cache_memory_bytes or gpu_memory_utilization, or lower block_size"
        )
    return available // block_bytes


def num_host_blocks(config: EngineConfig, spec: KVCacheSpec) -> int:
    """How many blocks the host pool has (`swap_space`)."""
    return int(config.swap_space * GIB) // (spec.bytes_per_token() * config.block_size)


class KVCache:
    """The tensor `kv`, zeroed, on `device`, and `host` for swapped-out blocks, pinned if the device is a GPU."""

    def __init__(
        self, spec: KVCacheSpec, num_blocks: int, num_host_blocks: int, block_size: int, device: torch.device
    ) -> None:
        block = (spec.num_layers, 2, spec.num_kv_heads, block_size, spec.head_dim)
        try:
            self.kv = torch.zeros((num_blocks, *block), dtype=spec.dtype, device=device)
            self.host = torch.zeros((num_host_blocks, *block), dtype=spec.dtype, pin_memory=device.type == "cuda")
        except RuntimeError:
            needed = (num_blocks + num_host_blocks) * block_size * spec.bytes_per_token() / GIB
            raise ConfigError(
                f"{num_blocks} blocks and {num_host_blocks} host blocks take {needed:.1f} GiB, which cannot be had: "
                "lower num_gpu_blocks_override, kv_cache_memory_bytes or swap_space"
            ) from None

    def layer(self, index: int) -> Tensor:
        """View [num_blocks, 2, num_kv_heads, block_size, head_dim] of one layer; its blocks are not contiguous."""
        return self.kv[:, index]
