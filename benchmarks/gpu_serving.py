"""The engine beside `transformers` on one device: equal tokens, then tokens per second of the same requests.

Random weights in the shape of Qwen3-0.6B, in bfloat16. Who does not finish in its share of the time is stopped and
measured by what it has generated so far.
"""

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from pagelens.engine import LLM, SamplingParams

QWEN3: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
TINY: dict[str, Any] = QWEN3 | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 199,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # at the usual 0.02 a random model repeats one token for ever, and hides every mistake
}
NEAR_TIE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Two logits nearer than this may change places when sums are taken in another order."""

NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


@dataclass(frozen=True)
class Job:
    """One request: its prompt, and how many tokens to generate, whatever they are."""

    prompt: list[int]
    num_new_tokens: int


def write_checkpoint(folder: Path, shape: dict[str, Any], dtype: torch.dtype, device: torch.device) -> str:
    """A random model of this shape; returns its folder."""
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(Qwen3Config(**shape, **NO_TOKENS), dtype=dtype)
    model.save_pretrained(folder)
    return str(folder)


def draw_jobs(count: int, shortest: int, longest: int, vocab_size: int) -> list[Job]:
    """Prompts and outputs of uniform lengths."""
    draw = random.Random(0)
    return [
        Job(draw.choices(range(1, vocab_size), k=draw.randint(shortest, longest)), draw.randint(shortest, longest))
        for _ in range(count)
    ]


def load_reference(folder: str, dtype: torch.dtype, device: torch.device) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    model.generation_config = GenerationConfig(**NO_TOKENS)
    return model


def check_transformers(folder: str, kernel: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Greedy tokens against `generate`, in chunks, with shared prefixes and a pool too small for all; are they equal?

    A sequence may part from the reference where the reference itself was undecided.
    """
    model = load_reference(folder, dtype, device)
    stream = draw_jobs(1, 60, 60, 199)[0].prompt
    prompts = [stream[:length] for length in (60, 41, 33, 17, 5)]
    options = {"block_size": 8, "max_num_seqs": 8, "max_num_batched_tokens": 24, "num_gpu_blocks_override": 14}
    llm = LLM(folder, kernel=kernel, dtype=str(dtype).removeprefix("torch."), **options)
    greedy = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    equal, parted = True, 0
    for prompt, output in zip(prompts, llm.generate(prompts, greedy, progress=False), strict=True):
        ids = torch.tensor([prompt], device=device)
        wanted = {"output_logits": True, "return_dict_in_generate": True, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            reference = model.generate(ids, max_new_tokens=8, do_sample=False, **wanted)
        margins = torch.cat(reference.logits).float().topk(2).values.diff(dim=1).neg().flatten().tolist()
        pairs = zip(reference.sequences[0, len(prompt) :].tolist(), output.outputs[0].token_ids, strict=True)
        where = next((i for i, (own, other) in enumerate(pairs) if own != other), None)
        if where is not None:
            parted += 1
            equal &= margins[where] < NEAR_TIE[dtype]
    verdict = "equal" if equal else "NOT EQUAL"
    print(f"  {dtype!s:16}{kernel:8}{verdict}, {parted} of {len(prompts)} parted at a near tie")
    return equal


Rate = tuple[int, float]
"""Tokens generated, and the seconds it took; loading and compiling are not counted."""


def run_engine(folder: str, jobs: list[Job], limit: float, log_events: bool, options: dict[str, Any]) -> Rate:
    """Our engine, as `LLM.generate` runs it."""
    llm = LLM(folder, log_events=log_events, enable_prefix_caching=False, **options)
    llm.generate([[1, 2, 3]] * 2, SamplingParams(max_tokens=2, ignore_eos=True), progress=False)  # compiles the kernels
    started = time.perf_counter()
    for job in jobs:
        params = SamplingParams(max_tokens=job.num_new_tokens, temperature=0, ignore_eos=True)
        llm.engine.add_request(job.prompt, params)
    num_tokens = 0
    while llm.engine.has_work and time.perf_counter() < started + limit:
        num_tokens += sum(output.token_id is not None for output in llm.engine.step())
    return num_tokens, time.perf_counter() - started


def run_static(folder: str, jobs: list[Job], limit: float, device: torch.device, dtype: torch.dtype, size: int) -> Rate:
    """`generate` on left-padded batches of `size` in order of arrival; each runs until its longest output is done."""
    model = load_reference(folder, dtype, device)
    num_tokens, started = 0, time.perf_counter()
    for first in range(0, len(jobs), size):
        left = started + limit - time.perf_counter()
        if left <= 0:
            break
        batch = jobs[first : first + size]
        longest = max(len(job.prompt) for job in batch)
        ids = torch.tensor([[0] * (longest - len(job.prompt)) + job.prompt for job in batch], device=device)
        most = max(job.num_new_tokens for job in batch)
        with torch.no_grad():
            out = model.generate(ids, attention_mask=ids != 0, max_new_tokens=most, do_sample=False, max_time=left)
        num_tokens += sum(min(job.num_new_tokens, out.shape[1] - longest) for job in batch)
    return num_tokens, time.perf_counter() - started


def run_continuous(folder: str, jobs: list[Job], limit: float, device: torch.device, dtype: torch.dtype) -> Rate:
    """The continuous batching of `transformers`; only requests that are finished within the limit are counted."""
    model = load_reference(folder, dtype, device)
    options = GenerationConfig(do_sample=False, **NO_TOKENS | {"eos_token_id": -1})
    num_tokens = 0
    with model.continuous_batching_context_manager(generation_config=options, timeout=5) as manager:
        started = time.perf_counter()
        for job in jobs:
            manager.add_request(job.prompt, max_new_tokens=job.num_new_tokens)
        for _ in jobs:
            result = manager.get_result(timeout=max(0.0, started + limit - time.perf_counter()))
            if result is None:
                break
            if result.error:
                raise RuntimeError(result.error)
            num_tokens += len(result.generated_tokens)
        return num_tokens, time.perf_counter() - started


def print_rates(folder: str, jobs: list[Job], ends: float, device: torch.device, dry: bool) -> bool:
    """One line for each contender, with an equal share of the time that is left; false if ours generated nothing."""
    dtype = torch.float32 if dry else torch.bfloat16
    options: dict[str, Any] = {"kernel": "torch", "num_gpu_blocks_override": 200}
    if not dry:
        options = {"kernel": "triton", "dtype": "bfloat16", "gpu_memory_utilization": 0.8}
        options |= {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    contenders: dict[str, Callable[[float], Rate]] = {
        "engine, events off": lambda limit: run_engine(folder, jobs, limit, False, options),
        "engine, no CUDA graphs": lambda limit: run_engine(
            folder, jobs, limit, False, options | {"enforce_eager": True}
        ),
        "engine, events on": lambda limit: run_engine(folder, jobs, limit, True, options),
        "transformers, continuous batching": lambda limit: run_continuous(folder, jobs, limit, device, dtype),
        "transformers, static batches of 64": lambda limit: run_static(folder, jobs, limit, device, dtype, 64),
    }
    wanted = sum(job.num_new_tokens for job in jobs)
    print(f"  {len(jobs)} requests, {sum(len(job.prompt) for job in jobs):,} tokens in, {wanted:,} out, {dtype}")
    ours = 0
    for number, (name, run) in enumerate(contenders.items()):
        share = (ends - time.perf_counter()) / (len(contenders) - number)
        try:
            num_tokens, took = run(max(10, share - 10))  # the rest is for loading and compiling
        except Exception as failure:  # a rival that cannot run here costs a line, not the others
            if name.startswith("engine"):
                raise
            print(f"  {name:36} skipped: {type(failure).__name__}: {str(failure).splitlines()[0][:70]}")
            continue
        ours = max(ours, num_tokens if name.startswith("engine") else 0)
        part = "" if num_tokens == wanted else f", stopped after {num_tokens / wanted:.0%} of the tokens"
        print(f"  {name:36}{num_tokens / took:10,.0f} tokens/s in {took:.0f} s{part}")
        gc.collect()
        torch.cuda.empty_cache()
    return ours > 0
