"""The four batches of `peers.py`. Prompts are new in every round, so that no cache holds those of the last."""

import random
from dataclasses import dataclass

from contender import Prompts

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Workload:
    """`count` prompts of `shortest` to `longest` tokens of their own, behind `shared` that all have in common."""

    title: str
    count: int
    shortest: int
    longest: int
    num_new: int
    shared: int = 0

    def prompts(self, vocab_size: int, seed: int) -> Prompts:
        """The lengths are the same in every round, the tokens are not."""
        lengths, tokens = random.Random(0), random.Random(seed)
        prefix = tokens.choices(range(1, vocab_size), k=self.shared)
        sizes = [lengths.randint(self.shortest, self.longest) for _ in range(self.count)]
        return [prefix + tokens.choices(range(1, vocab_size), k=size) for size in sizes]


WORKLOADS = {
    "a": Workload("16 prompts of 16-256 tokens, 64 new", 16, 16, 256, 64),
    "b": Workload("64 prompts of 16-256 tokens, 128 new", 64, 16, 256, 128),
    "c": Workload("one prompt of 128 tokens, 128 new", 1, 128, 128, 128),
    "d": Workload("16 prompts, 512 tokens in common and 16-64 of their own, 64 new", 16, 16, 64, 64, shared=512),
}
