"""The least time that a batch can take here: for each step, what must be read over what this memory reads in a second,
or what must be multiplied over what these cores multiply, whichever is longer.

    step 0         all prompts       weights once, their keys and values written       2 FLOPs a weight and token,
    step 1 ...     1 token each      weights once, all keys and values read            and attention's two products

Both rates are measured on the spot, with the model's own sizes and data type.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Rates:
    """Bytes and floating-point operations a second."""

    bytes: float
    flops: float

    def best(self, other: "Rates") -> "Rates":
        """The higher of each."""
        return Rates(max(self.bytes, other.bytes), max(self.flops, other.flops))


def measure(shape: dict[str, Any], dtype: torch.dtype) -> Rates:
    """The best of several ways to read as many bytes as the weights have, and to multiply as the model does."""
    num_bytes = num_weights(shape) * dtype.itemsize
    numbers = torch.ones(num_bytes // 4096, 1024)
    vector = torch.ones(1024)
    reading = [lambda: numbers.sum(), lambda: numbers.mv(vector), lambda: numbers.view(torch.int32).max()]
    bytes_rate = max(num_bytes / _seconds(read) for read in reading)

    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    flops_rate = 0.0
    for rows in (64, 256, 1024):
        for outputs in (2 * wide, hidden):
            inputs = hidden if outputs == 2 * wide else wide
            x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
            seconds = _seconds(lambda x=x, weight=weight: torch.nn.functional.linear(x, weight))
            flops_rate = max(flops_rate, 2 * rows * inputs * outputs / seconds)
    return Rates(bytes_rate, flops_rate)


def num_weights(shape: dict[str, Any]) -> int:
    """Weights that a step reads: the layers', and the head's, which is the embedding too."""
    return shape["num_hidden_layers"] * _weights_per_layer(shape) + shape["vocab_size"] * shape["hidden_size"]


def floor_seconds(
    shape: dict[str, Any], dtype: torch.dtype, lengths: list[int], shared: int, num_new: int, rates: Rates
) -> float:
    """Of prompts of these lengths; the first `shared` tokens, which all have in common, are computed and read once."""
    layers, heads = shape["num_hidden_layers"], shape["num_attention_heads"]
    head_dim = shape["hidden_size"] // heads
    token_bytes = 2 * layers * shape["num_key_value_heads"] * head_dim * dtype.itemsize
    weight_bytes = num_weights(shape) * dtype.itemsize
    head_flops = 2 * shape["vocab_size"] * shape["hidden_size"] * len(lengths)

    def step(num_tokens: int, stored_tokens: int, seen_tokens: int) -> float:
        flops = 2 * layers * _weights_per_layer(shape) * num_tokens + head_flops
        flops += 4 * layers * heads * head_dim * seen_tokens
        return max((weight_bytes + token_bytes * stored_tokens) / rates.bytes, flops / rates.flops)

    total, again = sum(lengths), shared * (len(lengths) - 1)
    seen = sum(length * (length + 1) for length in lengths) - shared * (shared + 1) * (len(lengths) - 1)
    seconds = step(total - again, total - again, seen // 2)
    for number in range(1, num_new):
        context = total + number * len(lengths)
        seconds += step(len(lengths), context - again, context)
    return seconds


def _weights_per_layer(shape: dict[str, Any]) -> int:
    hidden, heads, kv_heads = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    projections = hidden * (2 * heads + 2 * kv_heads) * (hidden // heads)
    return projections + 3 * hidden * shape["intermediate_size"]


def _seconds(run: Callable[[], Any], rounds: int = 9) -> float:
    """The least of several runs after a first that does not count."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times[1:])
