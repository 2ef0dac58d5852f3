"""Engines without a model, for tests of everything but arithmetic."""

import random
from typing import Any

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.beam_search import Candidate
from pagelens.engine.request import Sequence
from pagelens.engine.runner import Launch, ScriptedRunner
from pagelens.engine.sampler import SequenceResult


def counting_token(sequence: Sequence, sample_index: int) -> int:
    """A token that depends on where it stands and on the sample, so that branches diverge at once."""
    return 1000 * sample_index + sequence.num_tokens


def scripted_engine(
    num_blocks: int = 16, block_size: int = 4, runner: Any = None, host_blocks: int = 0, **options: Any
) -> Engine:
    """An engine whose tokens come from `counting_token`."""
    defaults = {"max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    config = EngineConfig(num_gpu_blocks_override=num_blocks, block_size=block_size, **(defaults | options))
    return Engine(config, runner=runner or ScriptedRunner(counting_token), scripted_host_blocks=host_blocks)


class ShadowRunner(ScriptedRunner):
    """Carries out every plan on an array of slots, and checks that each sequence finds its own tokens again.

    A slot holds what a real key depends on: the whole prefix up to its position. The moves of each kind are made in
    random order, all before anything is written, as a GPU may.
    """

    def __init__(self, num_blocks: int, block_size: int, seed: int = 0, host_blocks: int = 0) -> None:
        super().__init__(counting_token)
        self.slots: list[tuple[int, ...] | None] = [None] * (num_blocks * block_size)
        self.host_slots: list[tuple[int, ...] | None] = [None] * (host_blocks * block_size)
        self.block_size = block_size
        self.fail_next = False
        self._random = random.Random(seed)

    def execute(self, launch: Launch) -> list[SequenceResult]:
        plan, size = launch.plan, self.block_size
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the device is gone")
        self._move(plan.swap_out, self.slots, self.host_slots)
        self._move(plan.swap_in, self.host_slots, self.slots)
        self._move(plan.copies, self.slots, self.slots)
        written: set[int] = set()
        for item in plan.scheduled:
            for slot, position in zip(
                item.block_table.slots(item.start, item.num_tokens, size).tolist(),
                range(item.start, item.start + item.num_tokens),
                strict=True,
            ):
                assert slot not in written, "two tokens of one launch went into one slot"
                written.add(slot)
                self.slots[slot] = tuple(item.sequence.token_ids[: position + 1])
        for item in plan.scheduled:
            end = item.start + item.num_tokens
            for position, slot in enumerate(item.block_table.slots(0, end, size).tolist()):
                expected = tuple(item.sequence.token_ids[: position + 1])
                assert self.slots[slot] == expected, f"{item.sequence.name} reads a wrong token at {position}"
        return [
            SequenceResult(candidates=_candidates(item.sequence)) if wants_candidates else result
            for item, result in zip(plan.scheduled, super().execute(launch), strict=True)
            for wants_candidates in [bool(item.num_samples and item.sequence.request.search is not None)]
        ]

    def _move(self, moves: list, source: list, destination: list) -> None:
        size, targets = self.block_size, [move.destination for move in moves]
        assert len(set(targets)) == len(targets), "a block is destination twice in one launch"
        if source is destination:
            assert not set(targets) & {move.source for move in moves}, "a block is source and destination of one launch"
        for move in self._random.sample(moves, len(moves)):
            content = source[move.source * size : (move.source + 1) * size]
            destination[move.destination * size : (move.destination + 1) * size] = content


def crowded_run(host_blocks: int) -> Engine:
    """Samples and beams on a pool that is too small for them."""
    runner = ShadowRunner(14, 4, seed=0, host_blocks=host_blocks)
    engine = scripted_engine(14, 4, runner, host_blocks, max_num_seqs=16)
    for prompt, n, beam_width in (([7] * 9, 1, 0), ([7] * 13, 3, 0), ([5] * 6, 2, 0), ([3] * 9, 1, 4), ([4] * 9, 1, 4)):
        engine.add_request(list(prompt), SamplingParams(max_tokens=14, n=n, beam_width=beam_width))
    while engine.has_work:
        engine.step()
    return engine


def _candidates(sequence: Sequence) -> list[Candidate]:
    """Continuations of a beam that depend on all of its tokens, as a model's would."""
    search = sequence.request.search
    assert search is not None
    generator = random.Random(repr(sequence.token_ids))
    tokens = generator.sample(range(50), min(50, search.num_candidates))
    return [Candidate(token, -generator.random() - 0.1 * rank) for rank, token in enumerate(tokens)]
