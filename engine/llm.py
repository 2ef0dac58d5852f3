"""LLM: prompts in, texts out. The shortest way to use the engine; the call is vLLM's.

from pagelens.engine import LLM, SamplingParams

llm = LLM()
for output in llm.generate(["A hacker is", "When a program"], SamplingParams(max_tokens=40)):
    print(output.prompt, output.outputs[0].text)
"""

import time
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .beam_search import BeamSearch
from .config import EngineConfig
from .engine import Engine
from .errors import RequestError
from .models.loading_progress import Progress as LoadingProgress
from .output_processor import SequenceOutput
from .request import Request
from .sampling_params import SamplingParams

Prompt = str | list[int]


@dataclass
class CompletionOutput:
    """One answer. `finish_reason` is a `FinishReason`: "stop", "length", "out_of_blocks", "error".

    `logprobs[i]` belongs to `token_ids[i]`, where asked for. `score` is a beam's.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    logprobs: list[dict[int, float]] | None = None
    score: float | None = None


@dataclass
class RequestOutput:
    """A prompt with its answers, `outputs[i]` for i < n, or the finished beams, best first.

    `prompt_logprobs[p]` belongs to the prompt token at position p; None for the first, which nothing predicts. Times in
    seconds since the call of `generate`.
    """

    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, float] | None] | None = None
    time_to_first_token: float = 0.0
    time_finished: float = 0.0


class LLM:
    """An engine for batches of prompts.

    Args:
        model: folder or hub id of a checkpoint; "" is the embedded model, which needs no network.
        log_events: keep the events in `llm.engine.log`, for a recording or a picture.
        progress: is told how far loading the model is.
        options: the attributes of `EngineConfig`, by name.

    Raises:
        ConfigError, ModelError: an option is out of range, or the model cannot be loaded.
    """

    def __init__(
        self, model: str = "", *, log_events: bool = False, progress: LoadingProgress | None = None, **options: Any
    ) -> None:
        self.engine = Engine(EngineConfig(model=model, **options), log_events, progress=progress)

    def generate(
        self,
        prompts: Prompt | Collection[Prompt],
        params: SamplingParams | Collection[SamplingParams] | None = None,
        *,
        priority: int | Collection[int] = 0,
        cache_salt: str | Collection[str] = "",
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Generate for all prompts together and return the results in their order.

        Args:
            prompts: texts or lists of token ids; a single one counts as a list of one.
            params: for all prompts, or one for each; None is `SamplingParams()`.
            priority: for all or one for each; smaller is more urgent. Needs `scheduling_policy="priority"`.
            cache_salt: for all or one for each; prefixes are shared only under the same salt.
            progress: show a bar when there are several prompts.

        Raises:
            RequestError: one of the prompts cannot be served; then none of them is.
        """
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        many: list[Any] = [prompts] if single else list(prompts)
        each_params = _one_each(
            SamplingParams() if params is None else params, SamplingParams, "SamplingParams", len(many)
        )
        priorities = _one_each(priority, int, "priorities", len(many))
        salts = _one_each(cache_salt, str, "cache salts", len(many))
        started = time.perf_counter()
        requests = self.engine.add_requests(list(zip(many, each_params, strict=True)), priorities, salts)
        results = {request: _result(request) for request in requests}
        try:
            self._run(results, started, progress and len(requests) > 1)
        except BaseException:
            for request in requests:
                if request.request_id in self.engine.requests:
                    self.engine.abort(request.request_id)
            raise
        return list(results.values())

    def _run(self, results: dict[Request, RequestOutput], started: float, progress: bool) -> None:
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[speed]}"), transient=True, disable=not progress) as bar:
            task = bar.add_task("prompts", total=len(results), speed="")
            num_tokens = 0
            while self.engine.has_work:
                for output in self.engine.step():
                    num_tokens += output.token_id is not None
                    result = results.get(output.sequence.request)
                    if result is not None:
                        was_finished = result.time_finished > 0
                        self._add(result, output, time.perf_counter() - started)
                        bar.advance(task, result.time_finished > 0 and not was_finished)
                bar.update(task, speed=f"{num_tokens / (time.perf_counter() - started):.0f} tokens/s")

    def _add(self, result: RequestOutput, output: SequenceOutput, now: float) -> None:
        request = output.sequence.request
        if output.token_id is not None:
            result.time_to_first_token = result.time_to_first_token or now
        if request.search is None:
            answer = result.outputs[output.sequence.sample_index]
            answer.text += output.text
            if output.token_id is not None:
                answer.token_ids.append(output.token_id)
            if output.logprobs is not None and answer.logprobs is not None:
                answer.logprobs.append(output.logprobs)
            answer.finish_reason = output.finish_reason or ""
        if request.is_finished:
            result.time_finished = now
            if request.search is not None:
                result.outputs = self._beams(request.search)
            if request.params.prompt_logprobs is not None:
                positions = range(1, len(request.prompt_token_ids))
                result.prompt_logprobs = [None, *(request.prompt_logprobs.get(position) for position in positions)]

    def _beams(self, search: BeamSearch) -> list[CompletionOutput]:
        return [
            CompletionOutput(
                index=index,
                text=self.engine.outputs.decode(beam.token_ids),
                token_ids=beam.token_ids,
                finish_reason=beam.finish_reason,
                score=beam.score,
            )
            for index, beam in enumerate(search.finished)
        ]


def _one_each(given: Any, kind: type, name: str, count: int) -> list[Any]:
    """What was given for all prompts or, as a collection, for each."""
    if isinstance(given, kind):
        return [given] * count
    if len(given) != count:
        raise RequestError(f"there are {count} prompts but {len(given)} {name}: give one, or one for each")
    return list(given)


def _result(request: Request) -> RequestOutput:
    asked = request.params.logprobs is not None
    answers = [CompletionOutput(index, logprobs=[] if asked else None) for index in range(request.params.n)]
    return RequestOutput(request.request_id, request.prompt, request.prompt_token_ids, answers)
