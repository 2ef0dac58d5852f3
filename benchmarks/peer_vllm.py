"""vLLM as a contender, run by the Python of an environment that has it: `python peer_vllm.py FOLDER DTYPE`.

Compiled (its default), prefix caching on (its default), in one process, so that nothing waits busily while others run.
"""

import torch
from contender import Generate, Prompts, serve
from vllm import LLM, SamplingParams, __version__


def load(folder: str, dtype: str) -> tuple[str, Generate]:
    llm = LLM(
        folder,
        dtype=dtype,
        skip_tokenizer_init=True,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        max_model_len=2048,
        disable_log_stats=True,
    )

    def generate(prompts: Prompts, num_new: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=num_new, temperature=0, ignore_eos=True, detokenize=False)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(result.outputs[0].token_ids) for result in llm.generate(requests, params, use_tqdm=False)]

    return f"vllm {__version__}, torch {torch.__version__}, compiled", generate


if __name__ == "__main__":
    serve(load)
