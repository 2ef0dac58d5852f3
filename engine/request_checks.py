"""What can never be served is refused at submission; what merely has to wait is not looked at here."""

from numbers import Integral

from .block_table import blocks_needed
from .config import EngineConfig
from .errors import RequestError
from .sampling_params import SamplingParams


class RequestChecks:
    """The limits of one engine. Every method raises RequestError, naming the value, the limit and the remedy."""

    def __init__(
        self,
        config: EngineConfig,
        max_model_len: int,
        num_blocks: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._config = config
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def check(self, prompt_token_ids: list[int], params: SamplingParams) -> None:
        """A request as a whole."""
        self._check_prompt(prompt_token_ids)
        self._check_tokens(params)
        branches, most = params.most_branches, self._config.max_num_seqs
        if branches > most:
            name = "beam_width" if params.beam_width else "n"
            raise RequestError(f"{name} is {branches}, but at most {most} sequences run (max_num_seqs)")

    def check_priority(self, priority: int) -> None:
        """A priority is for an engine that heeds it."""
        if priority and self._config.scheduling_policy != "priority":
            raise RequestError(
                f"priority is {priority}, but scheduling_policy is 'fcfs', which heeds none: "
                "set scheduling_policy='priority'"
            )

    def _check_prompt(self, token_ids: list[int]) -> None:
        length, vocab_size = len(token_ids), self._vocab_size
        if length == 0:
            raise RequestError("the prompt is empty: give at least one token")
        for token in token_ids:
            if not isinstance(token, Integral) or not 0 <= token < vocab_size:
                raise RequestError(f"prompt token {token!r} is not one of the model's {vocab_size} tokens")
        if length >= self._max_model_len:
            raise RequestError(
                f"the prompt has {length} tokens, but prompt and output together may have {self._max_model_len} "
                "(max_model_len): shorten the prompt"
            )
        needs = blocks_needed(length + 1, self._config.block_size)
        if needs > self._num_blocks:
            raise RequestError(
                f"the prompt of {length} tokens and its first new token need {needs} blocks, but the pool has "
                f"{self._num_blocks}: shorten the prompt or raise num_gpu_blocks_override"
            )

    def _check_tokens(self, params: SamplingParams) -> None:
        vocab_size, forbidden = self._vocab_size, set(params.forbidden_token_ids)
        named = [*params.logit_bias, *(params.allowed_token_ids or ()), *forbidden, *params.stop_token_ids]
        for token in named:
            if not 0 <= token < vocab_size:
                raise RequestError(f"token {token} of the sampling parameters is not one of the model's {vocab_size}")
        if params.min_tokens:
            forbidden |= params.end_token_ids(self._eos_token_ids)
        left = vocab_size if params.allowed_token_ids is None else len(set(params.allowed_token_ids) - forbidden)
        if left == 0 or len(forbidden) >= vocab_size:
            raise RequestError("no token is left to generate: allow more tokens, or forbid fewer")
