"""`pagelens bench`: how fast is it here, with my model and my load? One command a question."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pagelens.engine import EngineConfig, PagelensError

from .bench import Load, Result, Told, in_turns
from .console import Blocks, BlockSize, Kernel, Model, Seed, err, messages, out

bench_app = typer.Typer(no_args_is_help=True, help="How fast it is here, with your model and load.")

Requests = Annotated[int, typer.Option(help="How many requests.")]
PromptLen = Annotated[str, typer.Option(help="Tokens of a prompt: one number, or fewest:most, drawn evenly.")]
MaxTokens = Annotated[int, typer.Option(help="Tokens to generate for each request; end tokens are not heeded.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Most sequences running at once.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="Most tokens computed in one step.")]
Repeat = Annotated[int, typer.Option(min=1, help="Rounds, of which the medians are printed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print figures, load and options as JSON.")]

ROWS = {
    "output_tokens_per_second": "output tokens a second",
    "total_tokens_per_second": "prompt and output tokens a second",
    "requests_per_second": "requests a second",
    "ttft_ms_p50": "time to first token, median (ms)",
    "ttft_ms_p95": "time to first token, 95th percentile (ms)",
    "itl_ms_p50": "time between tokens, median (ms)",
    "itl_ms_p95": "time between tokens, 95th percentile (ms)",
    "seconds": "seconds",
    "steps": "steps",
    "preemptions": "preemptions",
}


@bench_app.command()
def throughput(
    model: Model = "",
    requests: Requests = 32,
    prompt_len: PromptLen = "16:256",
    max_tokens: MaxTokens = 64,
    kernel: Kernel = "auto",
    block_size: BlockSize = 16,
    num_gpu_blocks: Blocks = None,
    max_num_seqs: MaxNumSeqs = 64,
    max_num_batched_tokens: MaxNumBatchedTokens = 512,
    seed: Seed = 0,
    repeat: Repeat = 3,
    as_json: AsJson = False,
) -> None:
    """Tokens per second, all requests at once."""
    with messages():
        config = EngineConfig(
            model=model,
            kernel=kernel,
            block_size=block_size,
            num_gpu_blocks_override=num_gpu_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            seed=seed,
        )
        load = Load(requests, _lengths(prompt_len), max_tokens)
        _report("throughput", {"measured": config}, load, repeat, as_json)


@bench_app.command()
def latency(
    model: Model = "",
    request_rate: Annotated[float, typer.Option(help="Requests a second, arriving at random moments.")] = 4.0,
    requests: Requests = 32,
    prompt_len: PromptLen = "16:256",
    max_tokens: MaxTokens = 64,
    kernel: Kernel = "auto",
    block_size: BlockSize = 16,
    num_gpu_blocks: Blocks = None,
    max_num_seqs: MaxNumSeqs = 64,
    max_num_batched_tokens: MaxNumBatchedTokens = 512,
    seed: Seed = 0,
    repeat: Repeat = 1,
    as_json: AsJson = False,
) -> None:
    """Time to first token and between tokens, at a rate of arrivals."""
    with messages():
        config = EngineConfig(
            model=model,
            kernel=kernel,
            block_size=block_size,
            num_gpu_blocks_override=num_gpu_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            seed=seed,
        )
        load = Load(requests, _lengths(prompt_len), max_tokens, request_rate=request_rate)
        _report("latency", {"measured": config}, load, repeat, as_json)


@bench_app.command("prefix-cache")
def prefix_cache(
    model: Model = "",
    prefix_len: Annotated[int, typer.Option(min=1, help="Tokens that all prompts begin with.")] = 256,
    requests: Requests = 32,
    prompt_len: PromptLen = "16:64",
    max_tokens: MaxTokens = 32,
    kernel: Kernel = "auto",
    block_size: BlockSize = 16,
    num_gpu_blocks: Blocks = None,
    seed: Seed = 0,
    repeat: Repeat = 3,
    as_json: AsJson = False,
) -> None:
    """What prefix caching gains for prompts with a common beginning: the same load with it and without."""
    with messages():
        configs = {
            name: EngineConfig(
                model=model,
                kernel=kernel,
                block_size=block_size,
                num_gpu_blocks_override=num_gpu_blocks,
                enable_prefix_caching=on,
                seed=seed,
            )
            for name, on in (("caching off", False), ("caching on", True))
        }
        load = Load(requests, _lengths(prompt_len), max_tokens, prefix_len=prefix_len)
        _report("prefix-cache", configs, load, repeat, as_json)


@bench_app.command("block-size")
def block_sizes(
    model: Model = "",
    sizes: Annotated[str, typer.Option(help="Block sizes, with commas.")] = "8,16,32,64",
    requests: Requests = 32,
    prompt_len: PromptLen = "16:256",
    max_tokens: MaxTokens = 64,
    kernel: Kernel = "auto",
    seed: Seed = 0,
    repeat: Repeat = 3,
    as_json: AsJson = False,
) -> None:
    """The same load with blocks of several sizes; the pool has the same bytes."""
    with messages():
        configs = {
            f"blocks of {size}": EngineConfig(model=model, kernel=kernel, block_size=size, seed=seed)
            for size in (_number("sizes", part) for part in sizes.split(","))
        }
        _report("block-size", configs, Load(requests, _lengths(prompt_len), max_tokens), repeat, as_json)


def _report(name: str, configs: dict[str, EngineConfig], load: Load, repeat: int, as_json: bool) -> None:
    """Measure, and print a table, or JSON."""
    with _progress(name, len(configs) * repeat * load.num_requests * load.max_tokens) as told:
        results = in_turns(configs, load, repeat, told)
    if as_json:
        print(json.dumps(_document(name, configs, load, repeat, results), indent=2))
        return
    table = Table(title=_describe(next(iter(results.values())), load, repeat), title_justify="left")
    table.add_column()
    for variant in results:
        table.add_column(variant, justify="right")
    each = [result.figures for result in results.values()]
    if len(each) == 2:
        table.add_column("ratio", justify="right")
    for figure, label in ROWS.items():
        ratios = [_ratio(each[1][figure], each[0][figure])] if len(each) == 2 else []
        table.add_row(label, *(_rounded(figures[figure]) for figures in each), *ratios)
    out.print(table)


@contextmanager
def _progress(name: str, num_tokens: int) -> Iterator[Told]:
    """A bar of generated tokens, on the error stream; gone when it is done."""
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TextColumn("{task.completed} tokens"))
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(name, total=num_tokens)
        yield lambda count: bar.advance(task, count)


def _document(
    name: str, configs: dict[str, EngineConfig], load: Load, repeat: int, results: dict[str, Result]
) -> dict[str, Any]:
    return {
        "benchmark": name,
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "load": asdict(load),
        "repeat": repeat,
        "results": {
            variant: {"config": configs[variant].as_dict(), "engine": result.engine, "figures": result.figures}
            for variant, result in results.items()
        },
    }


def _describe(result: Result, load: Load, repeat: int) -> str:
    model, kernel = result.engine["model"], result.engine["kernel"]
    engine = f"{model['name']}, {model['dtype']}, {kernel['name']} kernel"
    shortest, longest = load.prompt_len
    size = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    prefix = f"{load.prefix_len} tokens in common and " if load.prefix_len else ""
    rate = "" if load.request_rate is None else f" at {load.request_rate:g} a second"
    rounds = "" if repeat == 1 else f"; medians of {repeat} rounds"
    return f"{engine}\n{load.num_requests} prompts{rate}: {prefix}{size} tokens, {load.max_tokens} new{rounds}"


def _lengths(text: str) -> tuple[int, int]:
    """ "16:256" or "64"."""
    shortest, _, longest = text.partition(":")
    return _number("prompt-len", shortest), _number("prompt-len", longest or shortest)


def _number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PagelensError(f"--{option}: {text!r} is no number") from None


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _ratio(value: float, to: float) -> str:
    return f"{value / to:.2f}" if to else "-"
