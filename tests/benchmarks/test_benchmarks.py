"""The scripts that print figures, at small sizes: they run, and what they claim holds."""

import importlib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from pagelens.engine.contiguous import ContiguousServer, StepWork, maximum, true_length

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_lengths_come_from_a_file_of_the_azure_format(tmp_path: Path) -> None:
    lengths = script("lengths")
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023,100,0\n")
    assert lengths.read_lengths(trace) == [(374, 44), (100, 1)]
    assert lengths.model_length([(374, 44), (500, 12)]) == 512
    assert lengths.scaled([(374, 44)], 0.01) == [(4, 1)]
    trace.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="ContextTokens and GeneratedTokens are needed"):
        lengths.read_lengths(trace)


def test_the_built_in_lengths_are_as_described() -> None:
    drawn = script("lengths").built_in_lengths(4000)
    prompts, outputs = (sorted(column) for column in zip(*drawn, strict=True))
    assert 650 < prompts[2000] < 750 and 140 < outputs[2000] < 160
    assert 0.14 < sum(prompt > 2000 for prompt in prompts) / 4000 < 0.18
    assert prompts[-1] <= 7000 and outputs[-1] <= 1000


def test_paged_and_contiguous_compute_the_same_steps_where_memory_is_plenty() -> None:
    """The step model of the comparison: same tokens, same context, same ends in every step."""
    serving, lengths = script("serving"), script("lengths").built_in_lengths(40, seed=3)
    servers = [
        serving.PagedServer(1 << 17, 16, 8192, 1024, 64),
        ContiguousServer(1 << 17, true_length(), 1024, 64),
    ]
    for server in servers:
        for number, (prompt, output) in enumerate(lengths):
            server.add(str(number), prompt, output)
    while any(server.has_work for server in servers):
        paged, contiguous = (server.step() for server in servers)
        assert (paged.num_tokens, paged.num_context_tokens) == (contiguous.num_tokens, contiguous.num_context_tokens)
        assert sorted(paged.finished) == sorted(contiguous.finished)


def test_waste_stays_below_its_bounds_and_the_parts_make_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    waste, lengths = script("waste"), script("lengths").built_in_lengths(150)
    found = waste.splits(lengths, 1 << 16, 8192, 16)
    waste.print_splits(found)
    assert list(found) == ["maximum", "power of two", "true length", "paged"]
    assert found["paged"].wasted_share < 0.04 and found["paged"].external == 0
    assert found["true length"].unfilled == 0 and found["true length"].external > 0
    assert found["maximum"].external == 0, "pieces of one size leave no odd holes"
    shares = [split.shares()["tokens"] for split in found.values()]
    assert shares == sorted(shares)
    assert "at most 15 of 16 - 1 allowed" in capsys.readouterr().out


def test_where_the_waste_crosses_a_limit() -> None:
    crossing = script("waste").crossing
    assert crossing([(1, 1.0), (0.5, 2.0), (0.25, 6.0)], 2.0) == 0.5
    assert crossing([(1, 1.0), (0.25, 3.0)], 2.0) == pytest.approx(0.5)
    assert crossing([(1, 1.0), (0.5, 2.0)], 4.0) is None


def test_the_cost_of_a_step_and_the_rate_that_is_sustained() -> None:
    serving = script("serving")
    machine = serving.Machine("toy", parameters=1e9, kv_bytes=1000, bandwidth=1e12, flops=1e13)
    assert machine.num_slots == 70_000_000
    assert machine.step_seconds(StepWork(1, 0, [])) == 2e9 / 1e12, "reading the weights"
    assert machine.step_seconds(StepWork(100, 5000, [])) == pytest.approx(2e9 * 100 / 1e13 + 5000 * 1000 / 1e12)
    assert serving.sustained_rate(lambda rate: rate <= 3) == pytest.approx(3, rel=0.03)


def test_paged_sustains_more_than_reservations_of_the_maximum() -> None:
    """One contiguous request at a time, against as many as fit."""
    serving, lengths = script("serving"), [script("lengths").Lengths(100, 50)]
    machine = serving.Machine("toy", parameters=1e9, kv_bytes=1000, bandwidth=1e11, flops=1e14)

    def paged(rate: float) -> bool:
        return serving.keeps_pace(serving.PagedServer(2048, 16, 2048, 512, 64), machine, lengths, rate, 60, 0.1)

    def contiguous(rate: float) -> bool:
        server = ContiguousServer(2048, maximum(2048), 512, 64)
        return serving.keeps_pace(server, machine, lengths, rate, 60, 0.1)

    assert paged(0.5) and contiguous(0.5)
    assert paged(4) and not contiguous(4)
    assert not paged(40)


@pytest.mark.parametrize(("num_salts", "blocks", "holders"), [(1, 4, 60), (2, 8, 30), (60, 240, 1)])
def test_the_blocks_of_a_system_prompt_exist_once_for_each_salt(num_salts: int, blocks: int, holders: int) -> None:
    taken, most_tables, stats = script("shared_prefix").memory(60, num_salts)
    assert (taken, most_tables) == (blocks, holders)
    assert stats.hit_tokens == (60 - num_salts) * 64


def test_victim_policies_are_compared_on_the_same_load() -> None:
    measured = script("swap_or_recompute")
    for policy in ("", "pagelens.engine.policies:MostBlocksFreed"):
        recompute, _ = measured.bursty_run(policy, 0, 2048)
        swap, _ = measured.bursty_run(policy, 400, 2048)
        assert 0 < recompute.recomputed_tokens < recompute.lost_tokens and recompute.swapped_bytes == 0
        assert swap.lost_tokens == swap.recomputed_tokens == 0 and swap.blocks_out == swap.blocks_in > 0
        assert recompute.computed_tokens - recompute.recomputed_tokens == swap.computed_tokens


def test_swap_and_recompute_are_timed_on_the_embedded_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = script("swap_or_recompute")
    monkeypatch.setattr(measured, "BLOCK_SIZES", [1, 32])
    lines = measured.by_block_size(num_tokens=40, repetitions=1)
    assert {name: [size for size, _ in line] for name, line in lines.items()} == {
        "recompute": [1, 32],
        "swap out and in": [1, 32],
    }
    assert "   32       2" in capsys.readouterr().out, "40 tokens take two blocks of 32"


@pytest.mark.parametrize("number", range(4))
def test_a_short_soak_leaves_nothing_behind(number: int) -> None:
    soak = script("soak")
    options, host_blocks = soak.ENGINES[number]
    happened = soak.soak(options, host_blocks, 500, seed=number)
    assert happened["steps"] >= 500 and happened["RequestPreempted"] and happened["BlockCopied"]


def test_the_soak_notices_a_wrong_table() -> None:
    """The shadow is worth something: swap two entries of a table, and a sequence does not find its own tokens."""
    soak = script("soak")
    runner = soak.ShadowRunner(4, 0)
    config = soak.EngineConfig(num_gpu_blocks_override=soak.NUM_BLOCKS, max_model_len=64, block_size=4)
    engine = soak.Engine(config, runner=runner)
    engine.add_request(list(range(12)), soak.SamplingParams(max_tokens=8, temperature=0))
    engine.step()
    table = engine.manager.tables["A.0"]
    table[0], table[1] = table[1], table[0]
    plan = engine.plan()
    with pytest.raises(AssertionError, match=r"A\.0 does not find its own tokens"):
        engine.launch(plan)


def test_plots_are_whole_svg(tmp_path: Path) -> None:
    plot = script("svg_plot")
    bars = plot.stacked_bars("Slots & more", {"paged": [0.9, 0.1], "<maximum>": [0.2, 0.8]}, ["tokens", "free"])
    lines = plot.line_chart(
        "Time", "block size", "ms", {"swap": [(1, 3.0), (256, 0.1)], "recompute": [(1, 2), (256, 2)]}
    )
    for number, svg in enumerate((bars, lines)):
        plot.write_plot(tmp_path / "plots" / f"{number}.svg", svg)
        root = ElementTree.fromstring((tmp_path / "plots" / f"{number}.svg").read_text())
        assert root.tag.endswith("svg") and len(root) > 5
