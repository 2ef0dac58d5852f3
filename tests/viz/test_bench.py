"""`pagelens bench`, tiny: what is counted adds up, whatever the time says."""

import json
import re
from statistics import mean
from typing import Any

import pytest
from typer.testing import CliRunner

from pagelens.engine import Engine, EngineConfig, PagelensError
from pagelens.viz.bench import Load, in_turns, serve
from pagelens.viz.cli import app

SMALL = ["--requests", "3", "--prompt-len", "4:9", "--max-tokens", "5", "--repeat", "1", "--kernel", "torch"]


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    done = bench(*arguments, *SMALL, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["load"]["num_requests"] == 3 and found["load"]["max_tokens"] == 5 and found["machine"]["cores"] >= 1
    for result in found["results"].values():
        assert result["engine"]["kernel"]["name"] == "torch" and result["engine"]["model"]["name"] == "jargon"
        figures = result["figures"]
        assert figures["output_tokens_per_second"] * figures["seconds"] == pytest.approx(3 * 5)
        assert figures["requests_per_second"] * figures["seconds"] == pytest.approx(3)
        assert 0 < figures["ttft_ms_p50"] <= figures["ttft_ms_p95"] <= figures["seconds"] * 1e3
        assert 0 < figures["itl_ms_p50"] <= figures["itl_ms_p95"]
    return found


def test_throughput_counts_every_token() -> None:
    figures = document("throughput")["results"]["measured"]["figures"]
    assert figures["steps"] == 5 and figures["preemptions"] == 0
    assert 3 * (4 + 5) <= figures["total_tokens_per_second"] * figures["seconds"] <= 3 * (9 + 5)


def test_latency_waits_for_the_arrivals() -> None:
    found = document("latency", "--request-rate", "20")
    last = Load(3, (4, 9), 5, request_rate=20).arrivals(0)[-1]
    assert found["load"]["request_rate"] == 20 and found["results"]["measured"]["figures"]["seconds"] > last


def test_arrivals_are_poisson_and_all_at_once_without_a_rate() -> None:
    arrivals = Load(4000, (1, 1), 1, request_rate=50).arrivals(1)
    gaps = [later - earlier for earlier, later in zip([0.0, *arrivals], arrivals, strict=False)]
    assert mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert sum(gap > 1 / 50 for gap in gaps) / 4000 == pytest.approx(0.368, abs=0.03), "1/e of the gaps are longer"
    assert Load(3, (1, 1), 1).arrivals(1) == [0, 0, 0]


def test_prefix_caching_computes_a_common_beginning_once() -> None:
    results = document("prefix-cache", "--prefix-len", "600")["results"]
    off, on = results["caching off"], results["caching on"]
    assert not off["config"]["enable_prefix_caching"] and on["config"]["enable_prefix_caching"]
    assert off["figures"]["steps"] - on["figures"]["steps"] == 2, "1,800 tokens in steps of 512, or 600"


def test_block_sizes_share_the_bytes_of_the_pool() -> None:
    results = document("block-size", "--sizes", "8,32")["results"]
    assert list(results) == ["blocks of 8", "blocks of 32"]
    assert results["blocks of 8"]["engine"]["num_blocks"] == 4 * results["blocks of 32"]["engine"]["num_blocks"]


def test_the_table_has_a_row_for_each_figure_and_a_ratio_for_two_engines() -> None:
    done = bench("prefix-cache", *SMALL, "--prefix-len", "16")
    assert done.exit_code == 0, done.output
    assert "16 tokens in common and 4 to 9 tokens, 5 new" in " ".join(done.stdout.split())
    assert re.search(r"caching off.*caching on.*ratio", done.stdout)
    assert len(re.findall(r"^│ \w", done.stdout, re.MULTILINE)) == 10


def test_time_to_first_token_counts_from_the_arrival_and_every_gap_is_seen() -> None:
    engine = Engine(EngineConfig(kernel="torch", max_num_seqs=1), log_events=False)
    told: list[int] = []
    served = serve(engine, Load(3, (4, 4), 6), 0, told.append)
    assert sum(told) == served.num_output_tokens == 18 and served.num_prompt_tokens == 12
    assert len(served.first_tokens) == 3 and len(served.gaps) == 15
    assert served.first_tokens == sorted(served.first_tokens), "one at a time: the others wait"
    assert served.first_tokens[-1] > sum(served.gaps[:10])


def test_a_preempted_request_is_counted() -> None:
    engine = Engine(EngineConfig(kernel="torch", num_gpu_blocks_override=6, watermark=0), log_events=False)
    served = serve(engine, Load(3, (20, 20), 40), 0, lambda num_tokens: None)
    assert served.num_output_tokens == 120 and served.num_preemptions > 0


def test_engines_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    first = Engine.__init__

    def seen(engine: Engine, config: EngineConfig, *arguments: Any, **options: Any) -> None:
        sizes.append(config.block_size)
        first(engine, config, *arguments, **options)

    monkeypatch.setattr(Engine, "__init__", seen)
    configs = {str(size): EngineConfig(kernel="torch", block_size=size) for size in (8, 16)}
    in_turns(configs, Load(1, (2, 2), 2), 2, lambda num_tokens: None)
    assert sizes == [8, 16, 8, 16]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["latency", "--request-rate", "0"], "request_rate is 0.0 a second: it must be above 0"),
        (["throughput", "--prompt-len", "9:4"], "the prompts have 9 to 4 tokens"),
        (["throughput", "--prompt-len", "many"], "--prompt-len: 'many' is no number"),
        (["throughput", "--requests", "0"], "num_requests is 0: at least 1 is needed"),
        (["throughput", "--prompt-len", "1000", "--max-tokens", "100"], "up to 1100 tokens, but at most 1024"),
        (["block-size", "--sizes", "8,12"], "block_size is 12, allowed is a power of two"),
        (["throughput", "--num-gpu-blocks-override", "1"], "outgrew the pool of 1 blocks: raise num_gpu_blocks"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_reason(arguments: list[str], message: str) -> None:
    small = ["--prompt-len", "14", "--requests", "1", "--max-tokens", "5", "--kernel", "torch"]
    done = bench(arguments[0], *small, *arguments[1:])
    assert done.exit_code == 2 and message in " ".join(done.stderr.split()), done.output
    with pytest.raises(PagelensError):
        Load(1, (0, 1), 1)


def test_ctrl_c_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(engine: Engine) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "step", interrupted)
    done = bench("throughput", *SMALL)
    assert done.exit_code == 130 and done.stderr.strip().endswith("stopped")
