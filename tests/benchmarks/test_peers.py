"""The comparison with peers, tiny: processes start, take turns and agree on the first tokens; the floor adds up."""

import importlib
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
}


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_contenders_take_turns_on_the_same_prompts_and_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers, workloads = script("peers"), script("workloads")
    folder = peers.write_model(tmp_path / "model", TINY, torch.float32)
    workload = workloads.Workload("tiny", count=3, shortest=4, longest=9, num_new=6, shared=16)
    with ExitStack() as stack:
        ready = peers.start(stack, list(peers.NAMES), folder, "float32", None)
        runs = peers.take_turns(ready, workload, TINY["vocab_size"], 2)
        peers.print_results(workload, runs, 0.001)
        peers.print_agreement(runs)
    assert set(runs) == {"ours", "generate", "continuous"} and all(len(each) == 2 for each in runs.values())
    text = capsys.readouterr().out
    assert "vLLM                                skipped: give --vllm-python" in text
    assert "first token as ours: transformers.generate in 3 of 3 prompts" in text
    assert "first token as ours: transformers, continuous batching in 3 of 3 prompts" in text


def test_a_contender_that_cannot_start_is_named_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = script("peers")
    with ExitStack() as stack:
        assert peers.start(stack, ["vllm"], str(tmp_path / "model"), "float32", sys.executable) == {}
        assert peers.start(stack, ["vllm"], str(tmp_path / "model"), "float32", "/no/such/python") == {}
    without_vllm, without_python = capsys.readouterr().out.splitlines()
    assert "skipped: ModuleNotFoundError: No module named 'vllm'" in without_vllm
    assert "skipped: [Errno 2] No such file or directory: '/no/such/python'" in without_python


def test_a_contender_that_makes_too_few_tokens_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers, workload = script("peers"), script("workloads").Workload("tiny", 2, 4, 4, 6)
    lazy = tmp_path / "lazy.py"
    lazy.write_text(
        f"import sys\nsys.path.insert(0, {str(BENCHMARKS)!r})\nfrom contender import serve\n"
        "serve(lambda folder, dtype: ('lazy', lambda prompts, num_new: [[1] * min(num_new, 5)] * len(prompts)))\n"
    )
    with ExitStack() as stack:
        contender = script("contender").Contender([sys.executable, str(lazy)], "", "", tmp_path / "log", {})
        ready = {"vllm": stack.enter_context(contender)}
        assert ready["vllm"].what == "lazy"
        assert peers.take_turns(ready, workload, 99, 1) == {}
    assert "dropped: 2 answers of {5} tokens, not 2 of 6" in capsys.readouterr().out


def test_the_shape_is_a_135_m_llama_and_prompts_differ_from_round_to_round() -> None:
    peers, workloads, floor = script("peers"), script("workloads").WORKLOADS, script("floor")
    assert floor.num_weights(peers.SHAPE) == pytest.approx(135e6, rel=0.01)
    for workload in workloads.values():
        first, second = workload.prompts(49152, 0), workload.prompts(49152, 1)
        assert len(first) == workload.count and [*map(len, first)] == [*map(len, second)]
        assert all(mine[:16] != theirs[:16] for mine, theirs in zip(first, second, strict=True))
    heads = {tuple(prompt[:512]) for prompt in workloads["d"].prompts(49152, 0)}
    assert len(heads) == 1 and len(next(iter(heads))) == 512


def test_the_floor_is_the_slower_of_reading_and_multiplying() -> None:
    floor, weights = script("floor"), script("floor").num_weights(TINY)
    token_bytes = 2 * 2 * 2 * 8 * 4
    reads = floor.Rates(bytes=1.0, flops=1e30)
    # a prefill of 5 tokens, then two steps that read the 6 and 7 tokens there are
    seconds = floor.floor_seconds(TINY, torch.float32, [5], 0, 3, reads)
    assert seconds == pytest.approx(3 * weights * 4 + token_bytes * (5 + 6 + 7))
    twice = floor.floor_seconds(TINY, torch.float32, [5, 6], 4, 1, reads)
    assert twice == pytest.approx(weights * 4 + token_bytes * (4 + 1 + 2)), "what is shared is stored once"
    multiplies = floor.Rates(bytes=1e30, flops=1.0)
    one, two = (floor.floor_seconds(TINY, torch.float32, [1], 0, n, multiplies) for n in (1, 2))
    assert one == pytest.approx(2 * weights + 4 * 2 * 32 * 1)
    assert two - one == pytest.approx(2 * weights + 4 * 2 * 32 * 2)
    shared = floor.floor_seconds(TINY, torch.float32, [5, 6], 4, 1, multiplies)
    apart = floor.floor_seconds(TINY, torch.float32, [5, 6], 0, 1, multiplies)
    assert apart - shared == pytest.approx(2 * (weights - 99 * 32) * 4 + 4 * 2 * 32 * 10)


def test_the_profile_shares_out_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One prefill and five decodes; the parts of each add up to a step."""
    profile, workloads = script("where_time_goes"), script("workloads")
    folder = script("peers").write_model(tmp_path / "model", TINY, torch.float32)
    profile.print_profile(folder, "float32", workloads.Workload("tiny", 2, 4, 9, 6), TINY["vocab_size"])
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert head.split() == ["1", "prefills", "5", "decodes"]
    cells = {row[:32].strip(): [float(cell) for cell in row[32:].replace("%", "").split()] for row in rows}
    parts = ("products", "attention", "norms", "rotation", "SwiGLU", "keys and values written", "Python between them")
    assert set(parts) < set(cells)
    prefill, decode = cells.pop("a step")
    assert sum(cell[0] for cell in cells.values()) == pytest.approx(prefill, abs=0.1)
    assert sum(cell[2] for cell in cells.values()) == pytest.approx(decode, abs=0.1)


def test_options_name_pieces_and_refuse_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    read = script("peers").arguments
    args = read(["--only", "a,c", "--dtype", "float32", "--contenders", "ours,vllm"])
    assert (args.only, args.dtype, args.contenders) == (["a", "c"], ["float32"], ["ours", "vllm"])
    assert read([]).only == ["a", "b", "c", "d"] and read([]).dtype == ["bfloat16", "float32"]
    for wrong, message in ((["--only", "e"], "'e' is none of a, b, c, d"), (["--repeat", "0"], "at least one round")):
        with pytest.raises(SystemExit):
            read(wrong)
        assert message in capsys.readouterr().err
