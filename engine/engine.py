"""Engine: a step is plan -> launch -> commit.

    add_request --> [waiting] --> plan      the scheduler decides and moves blocks, on paper
                                  launch    data moves, the model runs, tokens are sampled
                                  commit    tokens are appended, finished sequences give their blocks back

Between the three the state is consistent, so that a debugger can halt there. The engine is used by one thread:
`LLM.generate` calls `step` itself, a server lets an `EngineLoop` do it.
"""

import itertools
import time
from collections.abc import Collection
from typing import Any

import torch

from . import events as ev
from .attention import select_kernels
from .beam_search import BeamSearch
from .config import EngineConfig
from .decode_graphs import DecodeGraphs, can_record
from .errors import ConfigError, RequestError
from .event_log import EventLog, LogHeader
from .events import Phase, Why
from .kernel_trace import KernelTracer, Wanted
from .kv_cache import num_gpu_blocks, num_host_blocks
from .kv_cache_manager import KVCacheManager
from .models.loader import LoadedModel, load_model
from .models.loading_progress import Progress
from .output_processor import OutputProcessor, SequenceOutput
from .policies import LowestPriority, load_policy
from .request import FinishReason, Request, Sequence, request_name
from .request_checks import RequestChecks
from .runner import Launch, ModelRunner, Runner
from .sampler import SequenceResult
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .source_lines import source_lines
from .step_plan import StepPlan


class Engine:
    """Serves requests with one model, or with a script in its place.

    Args:
        config: every knob.
        log_events: keep the events of the run in `log`; without, nothing is recorded and nothing is paid.
        runner: stands in for the model (a `ScriptedRunner`, say); then `num_gpu_blocks_override` and `max_model_len`
            must be given, prompts are token ids, and nothing is ever loaded.
        scripted_host_blocks: size of the host pool of a scripted engine, where `swap_space` has no bytes to count.
        progress: is told how far loading the model is.

    Raises:
        ConfigError, ModelError: the engine cannot be built as asked.
    """

    def __init__(
        self,
        config: EngineConfig,
        log_events: bool = True,
        runner: Runner | None = None,
        scripted_host_blocks: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.config = config
        self.loaded: LoadedModel | None = None
        if runner is None:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            kernels = select_kernels(config.kernel, device)
            self.loaded = load_model(config.model, config.dtype, kernels, device, progress)
            kernels = self.loaded.attention.kernels
            num_blocks = num_gpu_blocks(config, self.loaded.spec, device)
            host_blocks = num_host_blocks(config, self.loaded.spec)
            self.runner: Runner = ModelRunner(
                self.loaded, num_blocks, host_blocks, config.block_size, device, config.seed
            )
            self.kernel = {"name": kernels.name, "why": kernels.why, "interpreted": kernels.interpreted}
        else:
            if config.num_gpu_blocks_override is None or config.max_model_len is None:
                raise ConfigError(
                    "a scripted engine has no model to ask: give num_gpu_blocks_override and max_model_len"
                )
            num_blocks, host_blocks = config.num_gpu_blocks_override, scripted_host_blocks
            self.runner = runner
            self.kernel = {"name": "none", "why": "the runner is a script", "interpreted": False}
        self.max_model_len = self._limit_model_len()
        if (
            self.loaded
            and isinstance(self.runner, ModelRunner)
            and can_record(self.loaded)
            and not config.enforce_eager
        ):
            self.runner.graphs = DecodeGraphs(self.runner.forward, self.loaded, config, self.max_model_len, device)
        header = LogHeader(
            num_blocks=num_blocks,
            block_size=config.block_size,
            num_host_blocks=host_blocks,
            config=config.as_dict() | {"max_model_len": self.max_model_len},
            model=self.loaded.describe() if self.loaded else {"name": "scripted"},
            kernel=self.kernel,
            sources=source_lines() if log_events else {},
        )
        self.log = EventLog(header, enabled=log_events)
        self._tracer = KernelTracer(self.loaded, self.runner, self.log)
        by_priority = config.scheduling_policy == "priority"
        policy = load_policy(config.policy or (f"{LowestPriority.__module__}:LowestPriority" if by_priority else ""))
        self.manager = KVCacheManager(
            num_blocks, config.block_size, config.enable_prefix_caching, policy, self.log, host_blocks
        )
        self.scheduler = Scheduler(config, self.manager, policy, self.log)
        self.requests: dict[str, Request] = {}
        self.num_steps = 0
        self._num_requests = 0
        eos = self.loaded.eos_token_ids if self.loaded else frozenset()
        self._eos_token_ids = eos
        self.outputs = OutputProcessor(self.tokenizer, self.max_model_len)
        vocab_size = self.loaded.config.vocab_size if self.loaded else 1 << 63
        self.checks = RequestChecks(config, self.max_model_len, num_blocks, vocab_size, eos)

    @property
    def tokenizer(self) -> Any:
        """The model's `transformers` tokenizer; None for a script or a checkpoint without one."""
        return self.loaded.tokenizer if self.loaded else None

    # requests

    def tokenize(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt. Raises RequestError for text if the model has no tokenizer."""
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer: give the prompt as a list of token ids")
        try:
            return list(self.tokenizer.encode(prompt))
        except (TypeError, UnicodeError):
            raise RequestError("the prompt is not valid text (half a surrogate pair, or not UTF-8)") from None

    def add_request(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Request:
        """Queue a request.

        Args:
            prompt: text or token ids.
            params: how to sample, when to end.
            request_id: a name of your own; None counts A, B, C.
            priority: smaller is more urgent; used under `scheduling_policy="priority"`.
            cache_salt: share cached prefixes only with requests of the same salt.

        Raises RequestError if it cannot be served; that is logged too, and the engine is as it was before.
        """
        name = request_id or self.next_request_name()
        try:
            if name in self.requests:
                raise RequestError(f"request id {name!r} is in use by a request that has not ended")
            token_ids = self.tokenize(prompt)
            self.checks.check(token_ids, params)
            self.checks.check_priority(priority)
        except RequestError as error:
            self.log.emit(ev.RequestRejected, Why.INVALID, request=name, message=str(error))
            raise
        text = prompt if isinstance(prompt, str) else ""
        request = Request(name, self._num_requests, text, token_ids, params, priority, cache_salt)
        request.end_token_ids = params.end_token_ids(self._eos_token_ids)
        if params.beam_width:
            longest = min(params.max_tokens, self.max_model_len - len(token_ids))
            request.search = BeamSearch(params, request.end_token_ids, longest)
        self._num_requests += 1
        self.requests[name] = request
        first = request.sequences[0]
        if self.log.enabled:
            first.last_event = self.log.emit(
                ev.RequestArrived,
                Why.SUBMITTED,
                request=name,
                sequence=first.name,
                prompt_token_ids=token_ids,
                prompt_texts=self.outputs.token_texts(token_ids),
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                num_samples=params.n,
            )
        self.scheduler.add(request, self.num_steps)
        return request

    def next_request_name(self, ahead: int = 0) -> str:
        """The id that the next request gets if it brings none, or the one `ahead` later. Names in use are skipped."""
        names = (request_name(number) for number in itertools.count(self._num_requests))
        return next(itertools.islice((name for name in names if name not in self.requests), ahead, None))

    def add_requests(
        self,
        requests: Collection[tuple[str | list[int], SamplingParams]],
        priorities: Collection[int] = (),
        cache_salts: Collection[str] = (),
    ) -> list[Request]:
        """Queue several requests, or none: raises RequestError if one of them cannot be served.

        `priorities` and `cache_salts` are one for each request, or empty.
        """
        for priority in priorities:
            self.checks.check_priority(priority)
        for prompt, params in requests:
            self.checks.check(self.tokenize(prompt), params)
        priorities, cache_salts = priorities or [0] * len(requests), cache_salts or [""] * len(requests)
        return [
            self.add_request(prompt, params, priority=priority, cache_salt=salt)
            for (prompt, params), priority, salt in zip(requests, priorities, cache_salts, strict=True)
        ]

    def reset_prefix_cache(self) -> int:
        """Forget what every block holds, between two steps; returns how many blocks were addressable."""
        return self.manager.reset_prefix_cache()

    def abort(self, request_id: str) -> list[SequenceOutput]:
        """End a request between two steps, in whatever state it is. Raises RequestError if there is no such request."""
        request = self.requests.get(request_id)
        if request is None:
            raise RequestError(f"there is no unfinished request {request_id!r}")
        cause = self.log.emit(
            ev.RequestAborted, Why.USER_ABORT, request.sequences[0].last_event, request=request.request_id
        )
        alive = [sequence for sequence in request.sequences if sequence.finish_reason is None]
        for sequence in alive:
            self.scheduler.finish(sequence, FinishReason.ABORT, Why.USER_ABORT, cause)
        self._forget(alive)
        return self.outputs.process_ended(alive)

    def trace_kernel(self, sequence: str, layer: int = 0, kv_head: int = 0, tile: int = 0) -> None:
        """Have the next launch that `sequence` is part of tell what its attention kernel reads: a `KernelTraced` event.

        `tile` makes the kernel of that layer take so many keys at a time, so that there is a walk to see where it would
        take all at once; 0 leaves the launch as it is. The outputs differ by rounding only.

        Raises RequestError if there is no such sequence, layer or head.
        """
        unfinished = [
            each.name for request in self.requests.values() for each in request.sequences if not each.finish_reason
        ]
        self._tracer.want(Wanted(sequence, layer, kv_head), tile, unfinished)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    # the step

    def step(self) -> list[SequenceOutput]:
        """One whole step. A failure of the model ends the sequences of this step and nothing else."""
        plan = self.plan()
        try:
            launched = self.launch(plan)
        except BaseException as error:
            outputs = self.fail(plan, error)
            if isinstance(error, Exception):
                return outputs
            raise  # Ctrl-C: the state is whole again
        return self.commit(plan, launched)

    def plan(self) -> StepPlan:
        """Decide what this step computes."""
        self._begin(Phase.PLAN)
        started = time.perf_counter_ns()
        plan = self.scheduler.plan()
        plan.plan_ns = time.perf_counter_ns() - started
        return plan

    def launch(self, plan: StepPlan) -> list[SequenceResult]:
        """Move data, run the model; returns what it said about each scheduled sequence."""
        self._begin(Phase.LAUNCH)
        started = time.perf_counter_ns()
        if not (plan.scheduled or plan.swap_out):
            return []
        launch: Launch = self.runner.prepare(plan)
        cause = self.log.emit(
            ev.StepLaunched,
            Why.SCHEDULED,
            plan.event,
            kernel=self.kernel["name"],
            grid=launch.grid,
            tile=launch.tile,
            num_tokens=plan.num_tokens,
            num_copies=len(plan.copies),
            num_swaps=len(plan.swap_out) + len(plan.swap_in),
        )
        self._tracer.watch(launch, cause)
        results = self.runner.execute(launch)
        self._launched_event = self.log.emit(
            ev.TokensWritten,
            Why.SCHEDULED,
            cause,
            sequences=[item.sequence.name for item in plan.scheduled],
            starts=[item.start for item in plan.scheduled],
            counts=[item.num_tokens for item in plan.scheduled],
        )
        plan.launch_ns = time.perf_counter_ns() - started
        return results

    def commit(self, plan: StepPlan, results: list[SequenceResult]) -> list[SequenceOutput]:
        """Append the tokens, end what has ended."""
        self._begin(Phase.COMMIT)
        started = time.perf_counter_ns()
        grown = self.scheduler.commit(plan, results)
        new = [self.outputs.process(sequence, sample) for sequence, sample in grown]
        if new:
            cause = self.log.emit(
                ev.TokensGenerated,
                Why.MODEL_OUTPUT,
                self._launched_event,
                sequences=[output.sequence.name for output in new],
                token_ids=[output.token_id for output in new],
                texts=[output.text for output in new],
            )
            for output in new:
                if output.finish_reason is not None and output.why_finished is not None:
                    self.scheduler.finish(output.sequence, output.finish_reason, output.why_finished, cause)
        touched = {sequence.request: None for sequence in [*(item.sequence for item in plan.scheduled), *plan.finished]}
        searched = [request for request in touched if request.search is not None and request.is_finished]
        beams = [self.outputs.process_beams(request) for request in searched]
        ended = [sequence for sequence in plan.finished if sequence.request.search is None]
        self._forget([*plan.finished, *(output.sequence for output in new + beams)])
        self._end_step(plan, started)
        return self.outputs.process_ended(ended) + new + beams

    def fail(self, plan: StepPlan, error: BaseException) -> list[SequenceOutput]:
        """End the sequences of a plan whose launch failed, and take back what its blocks were said to hold."""
        self._begin(Phase.COMMIT)
        cause = self.log.emit(ev.StepFailed, Why.STEP_FAILED, plan.event, error=f"{type(error).__name__}: {error}")
        ended = [*plan.finished, *self.scheduler.fail(plan, cause)]
        self._forget(ended)
        self._begin_idle()
        return self.outputs.process_ended(ended)

    # helpers

    def _begin(self, phase: Phase) -> None:
        self.log.step, self.log.phase = self.num_steps, phase

    def _end_step(self, plan: StepPlan, commit_started: int) -> None:
        self.log.emit(
            ev.StepCommitted,
            Why.SCHEDULED,
            plan.event,
            plan_ns=plan.plan_ns,
            launch_ns=plan.launch_ns,
            commit_ns=time.perf_counter_ns() - commit_started,
        )
        self._begin_idle()

    def _begin_idle(self) -> None:
        self.num_steps += 1
        self._begin(Phase.IDLE)

    def _forget(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.request.is_finished:
                self.requests.pop(sequence.request.request_id, None)

    def _limit_model_len(self) -> int:
        asked = self.config.max_model_len
        if self.loaded is None:
            assert asked is not None
            return asked
        if asked is not None and asked > self.loaded.max_model_len:
            raise ConfigError(
                f"max_model_len is {asked}, but {self.loaded.name} was made for {self.loaded.max_model_len} positions "
                "(max_position_embeddings): lower it"
            )
        return asked or self.loaded.max_model_len
