"""Memory that was freed is kept for the next tensor, instead of being handed back to the system and asked for again.

A step makes the same tensors in every layer. For large ones glibc would ask the system each time, which hands out
memory page by page, each filled with zeros at its first use: a prefill of 2,000 tokens can spend a tenth of its time
there.
"""

import ctypes
import sys

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
TENSOR_BYTES, KEPT_BYTES = (1 << 28, 1 << 25), 1 << 30  # an older glibc takes no more than the second


def keep_freed_memory(device: torch.device) -> None:
    """If tensors are made on the CPU, have this process keep up to 1 GiB that it has freed; only glibc can be asked."""
    if device.type != "cpu" or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, num_bytes) for num_bytes in TENSOR_BYTES):
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
