"""SamplingParams: how the tokens of one request are chosen and when they end."""

from dataclasses import dataclass

from .errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """Validated on construction.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: logits are divided by it; 0 is greedy.
        top_k: sample among the k most likely tokens only; 0 means all.
        top_p: sample among the fewest tokens whose probabilities sum to at least top_p, in (0, 1].
        seed: makes the samples of this request reproducible by itself; None derives one from the engine's seed and the
            request's number.
        n: samples per request. They share the prompt's blocks until they diverge.
        stop_token_ids: tokens that end a sequence, beside the model's own end tokens.
        ignore_eos: go on past the model's own end tokens.

    Raises:
        RequestError: a value is out of range.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(0 <= self.temperature <= 100, "temperature", self.temperature, "0 (greedy) to 100")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (all tokens) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (all tokens)")
        _require(1 <= self.n <= 64, "n", self.n, "1 to 64")
        _require(self.seed is None or 0 <= self.seed < 1 << 63, "seed", self.seed, "0 to 2**63 - 1, or None")


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value}, allowed is {allowed}")
