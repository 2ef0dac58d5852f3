"""The command line: `pagelens` (the app) and its commands; groups of commands lie in `bench_commands.py` and the like.

Here and in the servers an error becomes a message, nowhere else.
"""

import gzip
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pagelens.engine import LLM, Engine, EngineConfig, EngineLoop, PagelensError, RequestOutput, SamplingParams
from pagelens.engine.attention import kernel_to_watch
from pagelens.engine.kvtrace import Trace, TraceWriter

from .bench_commands import bench_app
from .console import Blocks, BlockSize, Kernel, Model, Seed, err, loading, messages, out
from .inspection import Inspection
from .lab_commands import lab_app
from .mixed_requests import MIXED_REQUESTS
from .scenario_commands import scenario_app
from .scenario_file import SCENARIOS

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    help="A PagedAttention engine whose memory you can watch. Without a command: the live page.",
)
app.add_typer(lab_app, name="lab")
app.add_typer(scenario_app, name="scenario")
app.add_typer(bench_app, name="bench")

WatchedKernel = Annotated[
    str | None,
    typer.Option(help="auto, triton, numba or torch; without it Triton, to be watched, or auto where that cannot run."),
]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of a sequence, prompt and output together.")]
SwapSpace = Annotated[float, typer.Option(help="GiB of host memory for preempted sequences; 0 computes them again.")]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be given several times.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is all.")]
TopP = Annotated[float, typer.Option(help="Sample among the fewest tokens with this probability mass.")]
N = Annotated[int, typer.Option("--n", help="Samples per prompt.")]


def watched(kernel: str | None) -> str:
    """What was asked for, or Triton; where that cannot run, say so and take what can."""
    if kernel is not None:
        return kernel
    name, why_not = kernel_to_watch()
    if why_not:
        err.print(f"kernel={name}: {why_not}", markup=False, highlight=False, soft_wrap=True)
    return name


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """Without a command, serve the live page."""
    if context.invoked_subcommand is None:
        serve_app()


@app.command("app")
def serve_app(
    model: Model = "",
    kernel: WatchedKernel = None,
    block_size: BlockSize = 16,
    num_gpu_blocks: Blocks = 96,
    max_model_len: MaxModelLen = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences running at once.")] = 16,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens computed in one step.")] = 128,
    swap_space: SwapSpace = 0,
    seed: Seed = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 7860,
    password: Annotated[
        str | None,
        typer.Option(
            help="Everyone must give it to see the page. Better set PAGELENS_PASSWORD: other users of this machine can "
            "read a command line."
        ),
    ] = None,
    instructor_password: Annotated[
        str | None,
        typer.Option(
            help="Only who gives it may halt, step, change the speed, load a model, abort others' requests. Better set "
            "PAGELENS_INSTRUCTOR_PASSWORD."
        ),
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="Most unfinished requests of all viewers together.")] = 256,
    max_viewers: Annotated[int, typer.Option(min=1, help="Most browsers that watch at once.")] = 200,
    scenarios: Annotated[Path | None, typer.Option(help="Folder with scenarios of your own.")] = None,
) -> None:
    """Serve the live page on http://127.0.0.1:7860."""
    with messages():
        from .access import Access
        from .app import serve

        if scenarios is not None and not scenarios.is_dir():
            raise PagelensError(f"there is no folder {scenarios}: --scenarios names one with .toml files")
        access = Access(
            os.environ.get("PAGELENS_PASSWORD") if password is None else password,
            os.environ.get("PAGELENS_INSTRUCTOR_PASSWORD") if instructor_password is None else instructor_password,
        )
        config = EngineConfig(
            model=model,
            kernel=watched(kernel),
            block_size=block_size,
            num_gpu_blocks_override=num_gpu_blocks,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            swap_space=swap_space,
            seed=seed,
        )
        with loading() as progress:
            engine = Engine(config, progress=progress)
        loop = EngineLoop(engine, max_requests=max_requests)
        folders = (SCENARIOS,) if scenarios is None else (SCENARIOS, scenarios)
        serve(loop, host=host, port=port, access=access, max_viewers=max_viewers, scenarios=folders)


@app.command()
def generate(
    prompt: Prompts = None,
    model: Model = "",
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.7,
    top_k: TopK = 0,
    top_p: TopP = 0.9,
    n: N = 1,
    kernel: Kernel = "auto",
    block_size: BlockSize = 16,
    num_gpu_blocks: Blocks = None,
    max_model_len: MaxModelLen = None,
    seed: Seed = 0,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print tokens, finish reasons and timing as JSON.")
    ] = False,
) -> None:
    """Generate text for one or more prompts, or for standard input."""
    with messages():
        prompts = prompt or [_read_stdin()]
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, n=n)
        started = time.perf_counter()
        with loading() as progress:
            llm = LLM(
                model,
                progress=progress,
                kernel=kernel,
                block_size=block_size,
                num_gpu_blocks_override=num_gpu_blocks,
                max_model_len=max_model_len,
                seed=seed,
            )
        load_seconds = time.perf_counter() - started
        if json_output or len(prompts) > 1 or n > 1:
            results = llm.generate(prompts, params)
            _print_json(llm, results, load_seconds) if json_output else _print_texts(results)
        else:
            _stream_text(llm.engine, prompts[0], params)


@app.command()
def record(
    to: Annotated[Path, typer.Option("--out", help="The .kvtrace to write; a name ending in .gz is compressed.")],
    prompt: Prompts = None,
    model: Model = "",
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens for each --prompt (64).")] = None,
    temperature: Annotated[float | None, typer.Option(help="For each --prompt (0.7); 0 is greedy.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Samples for each --prompt (1).")] = None,
    kernel: WatchedKernel = None,
    block_size: BlockSize = 16,
    num_gpu_blocks: Blocks = 64,
    swap_space: SwapSpace = 0,
    seed: Seed = 0,
) -> None:
    """Run prompts and record every event. Without --prompt: eight mixed requests."""
    with messages():
        if not to.parent.is_dir():
            raise PagelensError(f"cannot record to {to}: there is no folder {to.parent}, create it first")
        engine = Engine(
            EngineConfig(
                model=model,
                kernel=watched(kernel),
                block_size=block_size,
                num_gpu_blocks_override=num_gpu_blocks,
                swap_space=swap_space,
                seed=seed,
            )
        )
        engine.add_requests(_recorded_requests(prompt, max_tokens, temperature, n))
        with TraceWriter(to, engine.log) as writer, err.status("recording") as status:
            while engine.has_work:
                engine.step()
                writer.drain()
                status.update(f"recording: step {engine.num_steps}, {engine.log.next_seq} events")
        told = f"{engine.log.next_seq} events of {engine.num_steps} steps; `pagelens inspect {to}` reads it"
        out.print(f"{to}: {told}", markup=False, soft_wrap=True)


@app.command()
def inspect(path: Annotated[Path, typer.Argument(help="A .kvtrace or .kvtrace.gz.")]) -> None:
    """Count events, peak use and waste of a recording, and check its invariants."""
    with messages():
        report = Inspection.of(Trace(path))
        for title, rows in report.sections():
            table = Table(title=title, title_justify="left", show_header=False, min_width=44)
            table.add_column()
            table.add_column(justify="right")
            for name, value in rows:
                table.add_row(escape(name), escape(value))
            out.print(table)
        if report.violations:
            raise PagelensError(f"{path} breaks {len(report.violations)} invariants, the first: {report.violations[0]}")


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="A .kvtrace or .kvtrace.gz.")],
    html: Annotated[Path | None, typer.Option(help="Write the viewer and the recording as one HTML file.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace, for ui.perfetto.dev; a name ending in .gz is compressed.")
    ] = None,
) -> None:
    """Make a file of a recording that others can open: an HTML page, or a Chrome trace."""
    with messages():
        if html is None and perfetto is None:
            raise PagelensError("say what to make: --html run.html, --perfetto run.json, or both")
        taken = {path.resolve()}
        for target in (html, perfetto):
            if target is not None and target.resolve() in taken:
                raise PagelensError(f"{target} is the recording itself, or is named twice: choose another name")
            taken |= {target.resolve()} if target is not None else set()
        if html is not None:
            from .export import single_file

            html.write_text(single_file(path), encoding="utf-8")
            out.print(f"{html}: {html.stat().st_size / 1e6:.2f} MB, opens offline", markup=False, soft_wrap=True)
        if perfetto is not None:
            from .perfetto import chrome_trace

            document = json.dumps(chrome_trace(Trace(path))).encode()
            perfetto.write_bytes(gzip.compress(document) if perfetto.suffix == ".gz" else document)
            out.print(f"{perfetto}: open it in https://ui.perfetto.dev", markup=False, soft_wrap=True)


@app.command()
def debug(
    prompt: Prompts = None,
    model: Model = "",
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.7,
    n: N = 1,
    kernel: WatchedKernel = None,
    block_size: BlockSize = 16,
    num_gpu_blocks: Blocks = 64,
    seed: Seed = 0,
) -> None:
    """Halt the engine between plan, launch and commit, and look at its memory. Commands from the keyboard or a pipe."""
    with messages():
        from .debug_console import run_console

        config = EngineConfig(
            model=model,
            kernel=watched(kernel),
            block_size=block_size,
            num_gpu_blocks_override=num_gpu_blocks,
            seed=seed,
        )
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, n=n)
        run_console(EngineLoop(Engine(config)), [(text, params) for text in prompt or []])


def _recorded_requests(
    prompts: list[str] | None, max_tokens: int | None, temperature: float | None, n: int | None
) -> list[tuple[str, SamplingParams]]:
    given = {"max_tokens": max_tokens, "temperature": temperature, "n": n}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if prompts:
        params = SamplingParams(**({"max_tokens": 64, "temperature": 0.7} | options))
        return [(text, params) for text in prompts]
    if options:
        raise PagelensError(f"{next(iter(options))} is for a --prompt, and there is none: give one, or leave it out")
    return MIXED_REQUESTS


def _read_stdin() -> str:
    if sys.stdin.isatty():
        raise PagelensError('there is no prompt: give --prompt "A hacker is", or pipe text in')
    return sys.stdin.read().rstrip("\n")


def _stream_text(engine: Engine, prompt: str, params: SamplingParams) -> None:
    request = engine.add_request(prompt, params)
    write: Callable[[str], Any] = sys.stdout.write
    write(prompt)
    while engine.has_work:
        for output in engine.step():
            write(output.text)
            sys.stdout.flush()
    write("\n")
    reason = request.sequences[0].finish_reason
    if reason not in ("stop", "length"):
        raise PagelensError(f"the text ended early: {reason}")


def _print_texts(results: list[RequestOutput]) -> None:
    for result in results:
        for answer in result.outputs:
            label = f"{result.request_id}.{answer.index}"
            out.print(f"[dim]{label} {answer.finish_reason}[/]", highlight=False)
            out.print(result.prompt + answer.text, markup=False, highlight=False)


def _print_json(llm: LLM, results: list[RequestOutput], load_seconds: float) -> None:
    tokens = sum(len(answer.token_ids) for result in results for answer in result.outputs)
    seconds = max(result.time_finished for result in results)
    document = {
        "model": llm.engine.log.header.model["name"],
        "kernel": llm.engine.kernel,
        "results": [asdict(result) for result in results],
        "timing": {
            "load_seconds": round(load_seconds, 3),
            "generate_seconds": round(seconds, 3),
            "output_tokens": tokens,
            "output_tokens_per_second": round(tokens / seconds, 2),
            "steps": llm.engine.num_steps,
        },
    }
    print(json.dumps(document, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    app()
