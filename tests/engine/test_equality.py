"""The engine generates what `transformers` generates: token for token, whatever the memory went through.

Greedy, in float32. There is one reference per checkpoint and prompt; chunks, preemptions, shared blocks, copies,
evictions, block sizes and whatever else shares the batch must all leave it as it is, and the events of each run show
that they happened.

Two tokens whose logits are all but equal (a near tie) may change places when sums are taken in another order. From
there on a sequence is its own and is not compared; `test_near_ties_are_rare` keeps that from hiding anything.
"""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagelens.engine import LLM, Engine, EngineConfig, SamplingParams
from pagelens.engine.block_table import blocks_needed
from pagelens.engine.events import PrefixLookup, SequenceScheduled, StepPlanned, Why
from pagelens.engine.scheduler import StepPlan

pytestmark = pytest.mark.usefixtures("one_thread")

CHECKPOINTS = ["llama", "mistral", "mistral-windowed", "qwen2", "qwen3", "embedded"]
AXES: dict[str, list[Any]] = {
    "checkpoint": CHECKPOINTS,
    "block_size": [1, 8, 16, 32],
    "chunked": [False, True],
    "memory": ["roomy", "recompute", "swap"],  # the latter two: a small pool, and what happens to those who give way
    "prefix_caching": [False, True],
    "n": [1, 4],
}
NUM_NEW_TOKENS = 8
Point = tuple[Any, ...]
"""One value of each axis."""


def pairwise() -> list[Point]:
    """A few points of the product in which each two values of two axes meet: always the next that adds most pairs."""

    def pairs(point: Point) -> set[Any]:
        return set(itertools.combinations(enumerate(point), 2))

    points = list(itertools.product(*AXES.values()))
    missing = set().union(*map(pairs, points))
    chosen = []
    while missing:
        chosen.append(max(points, key=lambda point: len(pairs(point) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def label(point: Point) -> str:
    checkpoint, block_size, chunked, memory, prefix_caching, n = point
    words = ["chunked"] * chunked + [memory] + ["cached"] * prefix_caching
    return "-".join([checkpoint, f"block{block_size}", *words, f"n{n}"])


def greedy(n: int = 1, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": NUM_NEW_TOKENS, "temperature": 0, "n": n, "ignore_eos": True} | others)


def assert_equal(oracle: Any, tally: Any, name: str, served: Any) -> None:
    """Every sample of every request is the reference's, up to where the reference itself was undecided."""
    for request in served.requests:
        reference = oracle(request.prompt_token_ids)
        assert len(request.sequences) == request.params.n
        for sequence in request.sequences:
            tokens = sequence.output_token_ids
            assert len(tokens) == len(reference.token_ids), f"{sequence.name} ended early: {sequence.finish_reason}"
            where = reference.parts_from(tokens)
            assert reference.equals(tokens), (
                f"{sequence.name} ({sequence.num_prompt_tokens} prompt tokens) differs in token {where}: "
                f"{tokens}, not {reference.token_ids}, margins {reference.margins}"
            )
            near_ties = sum(i < where for i in reference.near_ties)
            tally[name].update(compared=where, near_ties=near_ties, parted=where < len(tokens))


# -------------------------------------------------------------------------------------------------- the configurations


def lengths(block_size: int) -> list[int]:
    """Prompt lengths around the block boundaries, 1 to 3 * block_size + 1, and one longer than a chunk of 16.

    First three that soon grow out of their only block, all about the same time: a small pool is then too small.
    """
    size = block_size
    around = [size - 4, size - 3, size - 2, size, size - 1, 1, size + 1, 2 * size, 2 * size + 1, 3 * size, 3 * size + 1]
    return [length for length in dict.fromkeys([*around, 20] if size == 1 else around) if length > 0]


def workload(oracle: Any, block_size: int, n: int, few: bool) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts that begin alike, the last one only for a block; the second and third have n samples.

    `few` keeps it to six sequences, for the interpreter.
    """
    sizes = lengths(block_size)
    longest = max(sizes)
    if few:
        sizes = [*sizes[:4], longest] if n == 1 else [longest, sizes[1], block_size + 1]
    prompts = [oracle.prompt(length) for length in sizes]
    if n == 1 or not few:
        prompts.append(oracle.prompt(block_size) + oracle.prompt(longest, stream=1)[block_size:])
    many = {1} if few else {1, 2}
    return prompts, [greedy(n if i in many else 1) for i in range(len(prompts))]


def smallest_pool(prompts: list[list[int]], block_size: int) -> int:
    """Blocks that hold any one of the sequences to its end, and not one more."""
    return max(blocks_needed(len(prompt) + NUM_NEW_TOKENS, block_size) for prompt in prompts)


def run_and_compare(serve: Any, oracle: Any, tally: Any, kernel: str, point: Point) -> None:
    """One point of the product: the same tokens, and the events say that each mechanism asked for was at work."""
    checkpoint, block_size, chunked, memory, prefix_caching, n = point
    small_pool = memory != "roomy"
    its_oracle = oracle(checkpoint)
    prompts, params = workload(its_oracle, block_size, n, few=kernel == "triton")
    config = EngineConfig(
        model=str(its_oracle.folder),
        kernel=kernel,
        dtype="float32",
        block_size=block_size,
        max_num_seqs=16,
        max_num_batched_tokens=16 if chunked else 1024,
        num_gpu_blocks_override=smallest_pool(prompts, block_size) if small_pool else 500,
        enable_prefix_caching=prefix_caching,
        swap_space=0.01 if memory == "swap" else 0,
    )
    served = serve(config, prompts, params)
    assert_equal(its_oracle, tally, checkpoint, served)

    happened = served.totals
    chunks = [e for e in served.events if isinstance(e, SequenceScheduled) and e.why == Why.PREFILL_CHUNK]
    hits = [e for e in served.events if isinstance(e, PrefixLookup) and e.hit_blocks]
    plans = [e.num_tokens for e in served.events if isinstance(e, StepPlanned) and e.num_tokens]
    if kernel == "torch" or n == 1:  # the three prompts of the others may all start, or run, one after the other
        assert any(min(plan) == 1 < max(plan) for plan in plans), "prompts and single tokens shared a batch"
    assert bool(chunks) == chunked
    assert bool(hits) == prefix_caching
    assert bool(happened["RequestPreempted"]) == small_pool
    assert bool(happened["BlocksSwappedOut"]) == bool(happened["BlocksSwappedIn"]) == (memory == "swap")
    assert bool(happened["BlockCopied"]) == (n > 1 and block_size > 1)  # a block of one token is never half full
    assert bool(happened["BlockEvicted"]) == (small_pool and prefix_caching)


@pytest.mark.parametrize("point", itertools.product(*AXES.values()), ids=label)
def test_equals_transformers(serve, oracle, tally, point):
    run_and_compare(serve, oracle, tally, "torch", point)


@pytest.mark.triton
@pytest.mark.parametrize("point", pairwise(), ids=label)
def test_the_triton_kernels_equal_transformers(serve, oracle, tally, point):
    run_and_compare(serve, oracle, tally, "triton", point)


@pytest.mark.parametrize("point", pairwise(), ids=label)
def test_the_numba_kernels_equal_transformers(serve, oracle, tally, point):
    run_and_compare(serve, oracle, tally, "numba", point)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_every_prompt_length_equals_transformers(serve, oracle, tally, checkpoint):
    its_oracle = oracle(checkpoint)
    config = EngineConfig(str(its_oracle.folder), block_size=8, kernel="torch", dtype="float32", max_num_seqs=16)
    served = serve(config, [its_oracle.prompt(length) for length in range(1, 3 * 8 + 2)], greedy())
    assert_equal(its_oracle, tally, checkpoint, served)


def test_equal_blocks_after_different_beginnings_are_told_apart(serve, oracle, tally):
    """Keys and values depend on all that came before, so a block that follows another one is not the same block."""
    llama = oracle("llama")
    one, other = llama.prompt(20), llama.prompt(20, stream=1)
    prompts = [one, other, other[:8] + one[8:]]
    served = serve(EngineConfig(str(llama.folder), block_size=8, kernel="torch", dtype="float32"), prompts, greedy())
    assert_equal(llama, tally, "llama", served)
    assert [e.hit_blocks for e in served.events if isinstance(e, PrefixLookup)] == [0, 0, 1]


def test_ends_where_transformers_ends(checkpoint_copy, oracle):
    prompt = oracle("llama").prompt(5)
    end = oracle("llama")(prompt).token_ids[3]
    folder = checkpoint_copy("llama")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 198]}))
    expected = (
        oracle("llama")
        .model.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_NEW_TOKENS, do_sample=False, eos_token_id=[end, 198]
        )[0, 5:]
        .tolist()
    )
    answer = LLM(str(folder), kernel="torch").generate(prompt, greedy(ignore_eos=False))[0].outputs[0]
    assert answer.token_ids == expected
    assert answer.token_ids[-1] == end
    assert answer.finish_reason == "stop"


# ------------------------------------------------------------------------------------------- that equality means much


def references(its_oracle: Any) -> list[Any]:
    """Those of all prompts of the product."""
    workloads = [workload(its_oracle, block_size, 1, few=False)[0] for block_size in AXES["block_size"]]
    return [its_oracle(list(prompt)) for prompt in {tuple(prompt) for prompts in workloads for prompt in prompts}]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_near_ties_are_rare(oracle, tally, checkpoint):
    """Among the references, and among all tokens that the tests above compared, however often the same one."""
    margins = [margin for reference in references(oracle(checkpoint)) for margin in reference.margins]
    near_ties = sum(len(reference.near_ties) for reference in references(oracle(checkpoint)))
    print(f"{checkpoint}: {near_ties} near ties in {len(margins)} tokens of references; compared: {tally[checkpoint]}")
    assert near_ties < 0.01 * len(margins)
    if tally[checkpoint]["compared"] > len(margins):  # else only a few of the tests above were selected
        assert tally[checkpoint]["near_ties"] < 0.01 * tally[checkpoint]["compared"]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_references_are_varied(oracle, checkpoint):
    """A model that repeats one token for ever, or says the same to every prompt, would hide a wrong block."""
    answers = [reference.token_ids for reference in references(oracle(checkpoint))]
    assert min(len(set(answer)) for answer in answers) > 1
    assert sum(len(set(answer)) for answer in answers) / len(answers) > 6  # of 8
    assert len(set(map(tuple, answers))) > 0.9 * len(answers)


def swap_two_table_entries(engine: Engine, plan: StepPlan) -> bool:
    for item in plan.scheduled:
        table = item.block_table
        if item.num_tokens == 1 and len(table) > 1:
            table[-1], table[-2] = table[-2], table[-1]
            return True
    return False


def swap_entries_of_two_tables(engine: Engine, plan: StepPlan) -> bool:
    tables = [item.block_table for item in plan.scheduled if item.num_tokens == 1]
    for first, second in itertools.combinations(tables, 2):
        if first[1] != second[1]:
            first[1], second[1] = second[1], first[1]
            return True
    return False


def zero_a_block(engine: Engine, plan: StepPlan) -> bool:
    for item in plan.scheduled:
        if item.num_tokens == 1 and item.start % 8 and not plan.copies:  # a copy would fill the block again
            engine.runner.cache.kv[item.block_table[-1]] = 0
            return True
    return False


def forget_the_copies(engine: Engine, plan: StepPlan) -> bool:
    there_were_some = bool(plan.copies)
    plan.copies.clear()
    return there_were_some


def believe_in_a_false_prefix_hit(engine: Engine, plan: StepPlan) -> bool:
    for item in plan.scheduled:
        if item.num_tokens > 16:
            item.start, item.num_tokens = item.start + 16, item.num_tokens - 16
            return True
    return False


def harmed(serve: Any, its_oracle: Any, harm: Callable[[Engine, StepPlan], bool]) -> Any:
    """Two prompts with two samples each, in blocks of 8, none of them shared between the two; harmed once."""
    done: list[int] = []

    def mutate(engine: Engine, plan: StepPlan) -> None:
        if not done and harm(engine, plan):
            done.append(engine.num_steps)

    config = EngineConfig(
        str(its_oracle.folder), block_size=8, kernel="torch", dtype="float32", enable_prefix_caching=False
    )
    served = serve(config, [its_oracle.prompt(20), its_oracle.prompt(21, stream=1)], greedy(n=2), mutate=mutate)
    assert done
    return served


HARMS = [
    swap_two_table_entries,
    swap_entries_of_two_tables,
    zero_a_block,
    forget_the_copies,
    believe_in_a_false_prefix_hit,
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_one_mistake_is_noticed(serve, oracle, tally, checkpoint, harm):
    served = harmed(serve, oracle(checkpoint), harm)
    with pytest.raises(AssertionError, match="differs in token"):
        assert_equal(oracle(checkpoint), defaultdict(Counter), checkpoint, served)


@pytest.mark.parametrize("direction", ["swap_out", "swap_in"])
def test_a_swap_that_moves_nothing_is_noticed(serve, oracle, direction):
    """What the host pool gives back is what it was given, or the tokens would be others."""
    llama = oracle("llama")
    prompts, params = workload(llama, 8, 1, few=False)
    config = EngineConfig(
        str(llama.folder),
        block_size=8,
        kernel="torch",
        dtype="float32",
        num_gpu_blocks_override=smallest_pool(prompts, 8),
        enable_prefix_caching=False,
        swap_space=0.01,
    )
    served = serve(config, prompts, params, mutate=lambda engine, plan: getattr(plan, direction).clear())
    assert served.totals["BlocksSwappedIn"]
    with pytest.raises(AssertionError, match="differs in token"):
        assert_equal(llama, defaultdict(Counter), "llama", served)


def swap_two_full_blocks(engine: Engine, plan: StepPlan) -> bool:
    for item in plan.scheduled:
        if item.num_tokens == 1 and len(item.block_table) == 3:
            table = item.block_table
            table[0], table[1] = table[1], table[0]
            return True
    return False


def test_two_full_blocks_may_change_places(serve, oracle, tally):
    """No mistake to be noticed: keys carry their positions, and attention sums over them in any order."""
    served = harmed(serve, oracle("llama"), swap_two_full_blocks)
    assert_equal(oracle("llama"), tally, "llama", served)
