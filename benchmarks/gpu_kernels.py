"""The attention kernel on one device: equal to the oracle, and its time beside the floor and beside two rivals.

The floor of a decode step is the time to read its keys and values once, at the bandwidth of a large copy. That of a
prompt is the time of its multiplications, at the rate of a large matrix product. Both are measured here, on the same
device.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from pagelens.kernels import reference
from pagelens.kernels.paged_attention import paged_attention

BLOCK_SIZE = 16
LIMIT = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of max|err| / max|ref|, against the oracle in float32 on the same rounded inputs."""


@dataclass(frozen=True)
class Shape:
    """A batch of equal sequences, the last `num_queries` of `context` tokens each; heads are those of Qwen3-0.6B."""

    name: str
    num_seqs: int
    context: int
    num_queries: int
    num_heads: int = 16
    num_kv_heads: int = 8
    head_dim: int = 128

    def bytes(self, element_size: int) -> int:
        """Of keys and values, each read once."""
        return 2 * self.num_seqs * self.context * self.num_kv_heads * self.head_dim * element_size

    @property
    def flops(self) -> int:
        """Two products, a multiplication and an addition each, for each key that a query sees."""
        seen = self.num_queries * self.context - self.num_queries * (self.num_queries - 1) // 2
        return 4 * self.num_seqs * seen * self.num_heads * self.head_dim


SHAPES = [
    Shape("decode, 64 sequences of 1,024", 64, 1024, 1),
    Shape("decode, 16 sequences of 8,192", 16, 8192, 1),
    Shape("decode, 1 sequence of 32,768", 1, 32768, 1),
    Shape("prefill, 8 prompts of 2,048", 8, 2048, 2048),
]
DRY_SHAPES = [
    Shape("decode, 2 sequences of 50", 2, 50, 1, 4, 2, 16),
    Shape("prefill, 2 prompts of 20", 2, 20, 20, 4, 2, 16),
]


class Batch:
    """Keys and values of a shape twice: dense, [num_seqs, kv_heads, context, head_dim], and in shuffled blocks."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        torch.manual_seed(0)
        sizes = {"dtype": dtype, "device": device}
        self.query = torch.randn(shape.num_seqs, shape.num_heads, shape.num_queries, shape.head_dim, **sizes)
        self.key, self.value = torch.randn(
            2, shape.num_seqs, shape.num_kv_heads, shape.context, shape.head_dim, **sizes
        )
        each = -(-shape.context // BLOCK_SIZE)
        tables = torch.randperm(shape.num_seqs * each, device=device).view(shape.num_seqs, each)
        self.kv = torch.zeros(tables.numel(), 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim, **sizes)
        position = torch.arange(shape.context, device=device)
        for row, key, value in zip(tables, self.key, self.value, strict=True):
            block, slot = row[position // BLOCK_SIZE], position % BLOCK_SIZE
            self.kv[block, 0, :, slot] = key.transpose(0, 1)
            self.kv[block, 1, :, slot] = value.transpose(0, 1)
        self.tables = tables.int()
        self.starts = torch.arange(shape.num_seqs + 1, device=device, dtype=torch.int32) * shape.num_queries
        self.lengths = torch.full((shape.num_seqs,), shape.context, device=device, dtype=torch.int32)
        self.flat_query = self.query.transpose(1, 2).flatten(0, 1).contiguous()

    def paged(self, attention: Callable[..., Tensor], query: Tensor, kv: Tensor) -> Tensor:
        """Attention over the blocks, in the shape of the dense rivals."""
        scale = self.query.shape[-1] ** -0.5
        out = attention(query, kv, self.tables, self.starts, self.lengths, scale=scale)
        return out.unflatten(0, (len(self.lengths), -1)).transpose(1, 2)


def rivals(batch: Batch) -> dict[str, Callable[[], Tensor]]:
    """The same attention on dense keys and values, by torch. FlexAttention is compiled where there is a GPU."""
    query, key, value = batch.query, batch.key, batch.value
    length, causal = query.shape[2], query.shape[2] > 1
    on_gpu = query.device.type == "cuda"
    flex = torch.compile(flex_attention, dynamic=False) if on_gpu else flex_attention
    mask = (
        create_block_mask(lambda b, h, q, kv: kv <= q, None, None, length, length, device=query.device.type)
        if causal
        else None
    )
    return {
        "SDPA": lambda: scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True),
        "Flex": lambda: flex(query, key, value, block_mask=mask, enable_gqa=True),
    }


def error(result: Tensor, expected: Tensor) -> float:
    """max|err| / max|ref|; NaN counts as infinite."""
    value = float((result.double() - expected.double()).abs().max() / expected.double().abs().max())
    return value if value == value else float("inf")


def check_oracle(shapes: list[Shape], dtypes: list[torch.dtype], device: torch.device) -> bool:
    """Print how far the kernel is from the oracle; false if it is too far anywhere."""
    equal = True
    for shape in shapes:
        for dtype in dtypes:
            batch = Batch(shape, dtype, device)
            ours = batch.paged(paged_attention, batch.flat_query, batch.kv)
            off = error(ours, batch.paged(reference.paged_attention, batch.flat_query.float(), batch.kv.float()))
            print(f"  {shape.name:32}{dtype!s:16}{off:10.1e}  limit {LIMIT[dtype]:.0e}")
            equal &= off < LIMIT[dtype]
    return equal


def seconds(function: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median duration of a call, after three that do not count."""
    for _ in range(3):
        function()
    durations = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            function()
            end.record()
            end.synchronize()
            durations.append(start.elapsed_time(end) / 1000)
        else:
            started = time.perf_counter()
            function()
            durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def measure_rates(dtype: torch.dtype, device: torch.device, dry: bool) -> tuple[float, float]:
    """Bytes and floating-point operations per second that this device reaches at its best."""
    source = torch.zeros((1 << 24) if dry else (1 << 30), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    size = 256 if dry else 8192
    matrix = torch.randn(size, size, dtype=dtype, device=device)
    bandwidth = 2 * source.numel() / seconds(lambda: target.copy_(source), device, 10)
    return bandwidth, 2 * size**3 / seconds(lambda: matrix @ matrix, device, 10)


def print_times(shapes: list[Shape], dtype: torch.dtype, device: torch.device, dry: bool) -> bool:
    """Print each shape's time over its floor, and the rivals' times; false if a rival computes something else."""
    bandwidth, rate = measure_rates(dtype, device, dry)
    print(f"  this device: {bandwidth / 1e9:,.0f} GB/s, {rate / 1e12:,.2f} TFLOP/s in {dtype}")
    print(f"  {'':32}{'floor':>10}{'paged':>10}{'ratio':>8}{'SDPA':>10}{'Flex':>10}")
    equal, repeats = True, 3 if dry else 30
    for shape in shapes:
        batch = Batch(shape, dtype, device)
        floor = max(shape.bytes(dtype.itemsize) / bandwidth, shape.flops / rate)
        launch = partial(batch.paged, paged_attention, batch.flat_query, batch.kv)
        ours, expected = seconds(launch, device, repeats), launch()
        line = f"  {shape.name:32}{floor * 1e6:8.0f}us{ours * 1e6:8.0f}us{ours / floor:8.2f}"
        for name, rival in rivals(batch).items():
            try:
                equal &= error(rival(), expected) < 2 * LIMIT[dtype]
                line += f"{seconds(rival, device, repeats) * 1e6:8.0f}us"
            except Exception as failure:  # a rival that cannot run here costs a figure, not the others
                line += f"  {name} skipped: {str(failure).splitlines()[0][:60]}"
        print(line)
    return equal
