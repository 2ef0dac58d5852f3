"""EngineConfig: every knob of the engine, validated, with its unit."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import ConfigError

KERNELS = ("auto", "triton", "numba", "torch")
DTYPES = ("auto", "float32", "float16", "bfloat16")
SCHEDULING = ("fcfs", "priority")
GIB = 1 << 30


@dataclass(frozen=True)
class EngineConfig:
    """Names and meanings are vLLM's wherever vLLM has the knob.

    Attributes:
        model: folder or hub id of a Hugging Face checkpoint; "" is the embedded model.
        block_size: tokens per block, a power of two from 1 to 256.
        gpu_memory_utilization: share of the GPU's memory that may be in use once weights and pool are there; what is
            left is for activations and for others.
        num_gpu_blocks_override: size of the pool in blocks; goes before everything else.
        kv_cache_memory_bytes: size of the pool in bytes; goes before `gpu_memory_utilization`. Without a GPU the
            default is 64 MiB.
        max_model_len: most tokens of a sequence, prompt and output together; None takes what the model allows.
        max_num_seqs: most sequences running at once.
        max_num_batched_tokens: most tokens computed in one step; a longer prompt is computed in chunks.
        enable_prefix_caching: keep released blocks addressable by content.
        swap_space: GiB of host memory for the blocks of preempted sequences; 0 computes them again instead.
        tensor_parallel_size: number of GPUs. This version runs on one.
        kernel: "triton" (interpreted without a GPU), "numba" (for CPUs), "torch", or "auto", the fastest that runs:
            Triton on a GPU, Numba on a CPU, torch where these are missing.
        dtype: of weights, activations and cache; "auto" is the checkpoint's own on a GPU. On a CPU it is bfloat16 if
            the checkpoint's is and the CPU multiplies it, else float32.
        seed: from which requests without a seed of their own derive theirs.
        scheduling_policy: "fcfs", first come first served, or "priority": the smallest number first, aged by waiting.
        priority_aging_steps: steps of waiting that make a request more urgent by 1 under "priority".
        max_preemptions: a request preempted this often is no victim while there is another.
        watermark: share of the pool that admission leaves free for the growth of running sequences.
        enforce_eager: launch the kernels of a decode step one by one, where else a GPU would replay them as a CUDA
            graph. Without a GPU they are launched one by one anyway.
        policy: "module:Class" with the three decisions of `policies.Policy`; "" is the default policy, which
            under "priority" lets the least urgent request give way.

    Raises:
        ConfigError: a value is out of range, or asks for machinery that this version does not have.
    """

    model: str = ""
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    swap_space: float = 0
    tensor_parallel_size: int = 1
    kernel: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    scheduling_policy: str = "fcfs"
    priority_aging_steps: int = 100
    max_preemptions: int = 3
    watermark: float = 0.01
    enforce_eager: bool = False
    policy: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), (int | float if field.type is float else field.type)
            _require(isinstance(value, kind), field.name, repr(value), f"a value of type {field.type}")  # type: ignore[arg-type]
        size = self.block_size
        _require(1 <= size <= 256 and size & (size - 1) == 0, "block_size", size, "a power of two from 1 to 256")
        share = self.gpu_memory_utilization
        _require(0 < share <= 1, "gpu_memory_utilization", share, "above 0 and at most 1")
        for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes", "max_model_len"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "at least 1, or None")
        _require(self.max_num_seqs >= 1, "max_num_seqs", self.max_num_seqs, "at least 1")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
            f"at least max_num_seqs ({self.max_num_seqs}), so that every running sequence can have its next token",
        )
        _require(self.kernel in KERNELS, "kernel", repr(self.kernel), " or ".join(KERNELS))
        _require(self.dtype in DTYPES, "dtype", repr(self.dtype), " or ".join(DTYPES))
        _require(0 <= self.watermark < 1, "watermark", self.watermark, "0 or more and below 1")
        _require(0 <= self.seed < 1 << 63, "seed", self.seed, "0 to 2**63 - 1")
        _require(0 <= self.swap_space <= 1024, "swap_space", self.swap_space, "0 to 1024 GiB")
        policy = self.scheduling_policy
        _require(policy in SCHEDULING, "scheduling_policy", repr(policy), " or ".join(SCHEDULING))
        _require(self.priority_aging_steps >= 1, "priority_aging_steps", self.priority_aging_steps, "at least 1")
        _require(self.max_preemptions >= 1, "max_preemptions", self.max_preemptions, "at least 1")
        _require(
            self.tensor_parallel_size == 1,
            "tensor_parallel_size",
            self.tensor_parallel_size,
            "1: this version runs on a single device",
        )

    def as_dict(self) -> dict[str, Any]:
        """All knobs by name, for the header of a log."""
        return asdict(self)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value}, allowed is {allowed}")
