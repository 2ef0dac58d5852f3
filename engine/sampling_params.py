"""SamplingParams: how the tokens of one request are chosen and when they end."""

from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any

from .errors import RequestError

NUMBERS: dict[Any, tuple[str, tuple[type, ...]]] = {
    int: ("a whole number", (Integral,)),
    int | None: ("a whole number, or None", (Integral, NoneType)),
    float: ("a number", (Real,)),
}
NOT_FOR_BEAMS = ("n", "stop", "top_k", "top_p", "min_p", "seed", "logprobs")


@dataclass(frozen=True)
class SamplingParams:
    """Validated on construction. Names are vLLM's, defaults mean "off".

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: logits are divided by it; 0 is greedy.
        top_k: sample among the k most likely tokens only; 0 means all.
        top_p: sample among the fewest tokens whose probabilities sum to at least top_p, in (0, 1].
        min_p: drop tokens less likely than min_p times the likeliest, in [0, 1].
        seed: makes the samples of this request reproducible by itself; None derives one from the engine's seed and the
            request's number.
        n: samples per request. They share the prompt's blocks until they diverge.
        repetition_penalty: logits of tokens in prompt or output are divided by it if positive, else multiplied.
        presence_penalty: subtracted from the logit of every token of the output, in [-2, 2].
        frequency_penalty: subtracted once per occurrence in the output, in [-2, 2].
        logit_bias: added to the logits of these tokens, in [-100, 100].
        allowed_token_ids: if given, no other token is generated.
        forbidden_token_ids: these tokens are not generated.
        min_tokens: end tokens are not generated, and stop strings not heeded, before so many tokens.
        stop: texts that end a sequence where they first appear, also across token boundaries.
        include_stop_str_in_output: leave the stop text at the end of the output.
        stop_token_ids: tokens that end a sequence, beside the model's own end tokens.
        ignore_eos: go on past the model's own end tokens.
        logprobs: with every output token the log-probabilities of it and of so many likeliest, 0 to 20.
        prompt_logprobs: the same for every prompt token but the first. Such a request does not read the prefix cache.
        beam_width: 2 or more searches with so many beams instead of sampling. What such a search would ignore is
            refused: NOT_FOR_BEAMS, and a temperature other than 0 or 1.
        length_penalty: a beam's score is its summed log-probability over its length to this power.
        early_stopping: True ends when there are beam_width finished beams, False when no running beam is likely to do
            better, "never" when none can (the meanings are transformers').

    Raises:
        RequestError: a value is out of range.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    forbidden_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        for own in fields(self):
            kind, types = NUMBERS.get(own.type, ("", (object,)))
            value = getattr(self, own.name)
            _require(isinstance(value, types), own.name, repr(value), kind)
        _require(1 <= self.max_tokens < 1 << 31, "max_tokens", self.max_tokens, "at least 1, below 2**31")
        _require(0 <= self.temperature <= 100, "temperature", self.temperature, "0 (greedy) to 100")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (all tokens) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (all tokens)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "0 (all tokens) to 1")
        _require(1 <= self.n <= 64, "n", self.n, "1 to 64")
        _require(self.seed is None or 0 <= self.seed < 1 << 63, "seed", self.seed, "0 to 2**63 - 1, or None")
        _require(
            0 < self.repetition_penalty <= 10, "repetition_penalty", self.repetition_penalty, "above 0, at most 10"
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "-2 to 2")
        for token, bias in self.logit_bias.items():
            within = isinstance(bias, Real) and -100 <= bias <= 100
            _require(within, f"logit_bias of token {token}", bias, "-100 to 100")
        limit = f"0 to max_tokens ({self.max_tokens})"
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, limit)
        self._check_token_ids()
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        texts = all(isinstance(text, str) and text for text in self.stop)
        _require(texts, "stop", self.stop, "texts of at least one character")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(value is None or 0 <= value <= 20, name, value, "0 to 20, or None")
        _require(
            self.beam_width == 0 or 2 <= self.beam_width <= 32, "beam_width", self.beam_width, "0 (off) or 2 to 32"
        )
        if self.beam_width:
            _require(self.temperature in (0, 1), "temperature", self.temperature, "0 or 1 when beam_width is set")
            for own in fields(self):
                value = getattr(self, own.name)
                ignored = own.name in NOT_FOR_BEAMS and value != own.default
                _require(not ignored, own.name, value, f"{own.default} when beam_width is set")
        _require(-10 <= self.length_penalty <= 10, "length_penalty", self.length_penalty, "-10 to 10")
        allowed = self.early_stopping is True or self.early_stopping is False or self.early_stopping == "never"
        _require(allowed, "early_stopping", repr(self.early_stopping), 'True, False or "never"')

    def end_token_ids(self, eos_token_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end a sequence: the model's own, unless ignored, and the request's."""
        own = frozenset() if self.ignore_eos else eos_token_ids
        return own.union(self.stop_token_ids)

    @property
    def most_branches(self) -> int:
        """Sequences that the request may run at once."""
        return self.beam_width or self.n

    def _check_token_ids(self) -> None:
        for name in ("allowed_token_ids", "forbidden_token_ids", "stop_token_ids", "logit_bias"):
            tokens = getattr(self, name)
            for token in tokens or ():
                _require(
                    isinstance(token, Integral) and int(token) >= 0, f"a token of {name}", repr(token), "0 or more"
                )
            if tokens is not None and not isinstance(tokens, dict):
                object.__setattr__(self, name, tuple(tokens))
        if self.allowed_token_ids is not None:
            banned = {*self.forbidden_token_ids, *(self.stop_token_ids if self.min_tokens else ())}
            left = set(self.allowed_token_ids) - banned
            allowed = "None, or tokens of which one at least is neither forbidden nor, with min_tokens, a stop token"
            _require(len(left) > 0, "allowed_token_ids", self.allowed_token_ids, allowed)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value}, allowed is {allowed}")
