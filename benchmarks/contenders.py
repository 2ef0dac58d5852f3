"""Ours and the two ways of `transformers`, each as a process of its own: `python contenders.py ours FOLDER DTYPE`.

All get token ids, generate greedily, and have no end token, so that each makes the same number of tokens.
"""

import sys
from typing import Any

import torch
import transformers
from contender import Generate, Prompts, serve
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from pagelens.engine import LLM, SamplingParams

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 64, 2048
"""For every engine that has such knobs, vLLM included (`peer_vllm.py`)."""

BLOCK_SIZE, NUM_BLOCKS = 16, 2048
"""More than the largest of the batches fills, so that nobody waits for memory."""


def our_engine(folder: str, dtype: str) -> LLM:
    """As `LLM.generate` runs it, with the kernel that it takes by itself."""
    return LLM(
        folder,
        dtype=dtype,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=NUM_BLOCKS,
    )


def greedy(num_new: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_new, temperature=0, ignore_eos=True)


def ours(folder: str, dtype: str) -> tuple[str, Generate]:
    llm = our_engine(folder, dtype)

    def generate(prompts: Prompts, num_new: int) -> list[list[int]]:
        results = llm.generate(prompts, greedy(num_new), progress=False)
        return [result.outputs[0].token_ids for result in results]

    return f"{llm.engine.kernel['name']} kernel, torch {torch.__version__}", generate


def _load(folder: str, dtype: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def static_batch(folder: str, dtype: str) -> tuple[str, Generate]:
    """`model.generate` on all prompts at once, padded on the left."""
    model = _load(folder, dtype)

    def generate(prompts: Prompts, num_new: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=num_new, do_sample=False)
        return out[:, longest:].tolist()

    return f"transformers {transformers.__version__}, {model.config._attn_implementation}", generate


def continuous(folder: str, dtype: str) -> tuple[str, Generate]:
    """`model.generate_batch`, the continuous batching of `transformers`."""
    model = _load(folder, dtype)
    greedily = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    knobs = ContinuousBatchingConfig(
        max_batch_tokens=MAX_NUM_BATCHED_TOKENS, page_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS
    )

    def generate(prompts: Prompts, num_new: int) -> list[list[int]]:
        results = model.generate_batch(
            prompts,
            generation_config=greedily,
            continuous_batching_config=knobs,
            max_new_tokens=num_new,
            persistent_manager=True,
        )
        return [result.generated_tokens for result in results.values()]

    return f"transformers {transformers.__version__}", generate


if __name__ == "__main__":
    serve({"ours": ours, "generate": static_batch, "continuous": continuous}[sys.argv[1]])
