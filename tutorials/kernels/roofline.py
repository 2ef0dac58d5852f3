"""What a launch moves and multiplies, and how long a GPU takes for it at the very least: the roofline.

    time  ≥  bytes / bandwidth          the memory's side: every byte a program asks for has to come
    time  ≥  FLOPs / peak               the arithmetic's side

A GPU has a ratio of its own, peak / bandwidth: how often it can multiply with each byte while the next one comes. Work
whose FLOPs per byte (its intensity) lie below that waits for memory, whatever it computes. Decode does, always.

Counted is what programs ask for: elements of queries, keys, values, results and half-done states. Lengths and table
entries are left out, a few bytes beside thousands. A cache on the GPU may answer some requests for a key that another
program has just had; nothing here relies on that.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class GPU:
    """What a data sheet promises.

    Attributes:
        bandwidth: of the memory, in bytes a second.
        matrix_flops: of the matrix units in bfloat16, without sparsity, a second.
        vector_flops: of everything else in float32, a second.
        multiprocessors: each runs a few programs at a time.
    """

    name: str
    bandwidth: float
    matrix_flops: float
    vector_flops: float
    multiprocessors: int

    @property
    def ratio(self) -> float:
        """FLOPs that the matrix units can do for each byte that comes."""
        return self.matrix_flops / self.bandwidth


H100 = GPU("H100 SXM", bandwidth=3.35e12, matrix_flops=989e12, vector_flops=67e12, multiprocessors=132)
"""NVIDIA H100 Tensor Core GPU data sheet, SXM5 (it prints 1,979 TFLOP/s of bfloat16, with sparsity: twice this);
multiprocessors from the architecture's white paper."""


@dataclass(frozen=True)
class Shape:
    """A batch without its tensors: the lengths are those of the sequences, in tokens."""

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    element_size: int = 2

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def vector(self) -> int:
        """Bytes of one head of one token."""
        return self.head_dim * self.element_size

    def query_tiles(self, block_q: int) -> Iterator[tuple[int, int]]:
        """Of each tile of up to `block_q` query tokens: how many there are, and the keys that its program goes over."""
        for queries, context in zip(self.query_lens, self.seq_lens, strict=True):
            for first in range(0, queries, block_q):
                yield min(block_q, queries - first), min(context - queries + first + block_q, context)

    def token_by_token(self) -> "Shape":
        """The same work for a kernel that knows one query a sequence: each query token becomes a sequence."""
        contexts = [
            context - queries + i + 1
            for queries, context in zip(self.query_lens, self.seq_lens, strict=True)
            for i in range(queries)
        ]
        lengths = ((1,) * len(contexts), tuple(contexts))
        return Shape(*lengths, self.num_heads, self.num_kv_heads, self.head_dim, self.block_size, self.element_size)


@dataclass(frozen=True)
class Work:
    """What one step of the ladder does for a batch.

    Attributes:
        programs: of the attention launch, those included that return at once.
        loaded, stored: bytes.
        flops: a multiplication and an addition are two; those of padding and masked keys are done as well.
        matrix_units: they do it; otherwise each thread multiplies one number after the other.
    """

    programs: int
    loaded: int
    stored: int
    flops: int
    matrix_units: bool = True

    @property
    def intensity(self) -> float:
        """FLOPs for each byte moved."""
        return self.flops / (self.loaded + self.stored)

    def seconds(self, gpu: GPU) -> float:
        """The least time `gpu` takes.

        With fewer programs than multiprocessors the others stand idle, and their share of both roofs with them.
        """
        busy = min(1.0, self.programs / gpu.multiprocessors)
        peak = gpu.matrix_flops if self.matrix_units else gpu.vector_flops
        return max((self.loaded + self.stored) / gpu.bandwidth, self.flops / peak) / busy


def floor(shape: Shape, gpu: GPU) -> Work:
    """What no kernel can do without: each query, key and value once, each result once, each pair multiplied once."""
    tokens, context = sum(shape.query_lens), sum(shape.seq_lens)
    pairs = sum(keys for _, keys in shape.query_tiles(1))
    return Work(
        programs=gpu.multiprocessors,
        loaded=(tokens * shape.num_heads + 2 * context * shape.num_kv_heads) * shape.vector,
        stored=tokens * shape.num_heads * shape.vector,
        flops=4 * pairs * shape.num_heads * shape.head_dim,
    )
