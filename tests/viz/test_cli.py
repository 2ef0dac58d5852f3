"""The command line, as a person uses it."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import pagelens


def test_generate_prints_english() -> None:
    """As a process of its own."""
    arguments = ["generate", "--prompt", "A hacker is", "--max-tokens", "40", "--kernel", "torch"]
    command = [sys.executable, "-m", "pagelens.viz.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("A hacker is")
    assert len(done.stdout.split()) >= 5


def test_generate_json_has_tokens_finish_reason_and_timing() -> None:
    arguments = ["--prompt", "A hacker is", "--prompt", "When", "--max-tokens", "5", "--n", "2", "--json"]
    done = pagelens("generate", *arguments, "--kernel", "torch")
    document = json.loads(done.stdout)
    answers = [answer for result in document["results"] for answer in result["outputs"]]
    assert len(answers) == 4
    assert all(len(a["token_ids"]) <= 5 and a["finish_reason"] in ("length", "stop") for a in answers)
    assert document["timing"]["output_tokens"] == sum(len(answer["token_ids"]) for answer in answers)
    assert document["timing"]["output_tokens_per_second"] > 0
    assert document["kernel"]["name"] == "torch" and document["model"] == "jargon"


def test_the_same_seed_gives_the_same_text() -> None:
    arguments = ["generate", "--prompt", "A hacker is", "--max-tokens", "12", "--kernel", "torch", "--seed", "7"]
    assert pagelens(*arguments).stdout == pagelens(*arguments).stdout != pagelens(*arguments[:-1], "8").stdout


def test_a_prompt_can_be_piped_in() -> None:
    done = pagelens("generate", "--max-tokens", "3", "--kernel", "torch", stdin="When a program\n")
    assert done.stdout.startswith("When a program")


def test_record_then_inspect(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    recorded = pagelens("record", "--out", str(path), "--kernel", "torch")
    assert recorded.returncode == 0, recorded.stderr
    inspected = pagelens("inspect", str(path))
    assert inspected.returncode == 0, inspected.stderr
    for expected in ("peak used blocks", "BlockCopied", "RequestArrived", "saved by sharing", "hold"):
        assert expected in inspected.stdout


def test_inspect_reports_a_broken_invariant(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    pagelens("record", "--out", str(path), "--prompt", "A hacker is", "--max-tokens", "4", "--kernel", "torch")
    path.write_text(path.read_text().replace('"ref_count":1', '"ref_count":2', 1))
    done = pagelens("inspect", str(path))
    assert done.returncode == 2
    assert "invariants, the first: after event" in done.stderr and "has ref_count 2 but is in 1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--prompt", ""], "the prompt is empty"),
        (["generate", "--prompt", "x", "--max-tokens", "0"], "max_tokens is 0, allowed is at least 1"),
        (["generate", "--prompt", "x", "--temperature", "-1"], "temperature is -1"),
        (["generate", "--prompt", "x", "--top-p", "2"], "top_p is 2"),
        (["generate", "--prompt", "x", "--model", "/no/such"], "there is no model folder '/no/such'"),
        (["generate", "--prompt", "word " * 2000], "max_model_len"),
        (["generate", "--prompt", "word " * 90, "--num-gpu-blocks-override", "2"], "but the pool has 2"),
        (["generate", "--prompt", "x", "--block-size", "5"], "block_size is 5, allowed is a power of two"),
        (["record", "--out", "/no/such/run.kvtrace"], "there is no folder /no/such"),
        (["inspect", "/no/such.kvtrace"], "/no/such.kvtrace does not exist"),
    ],
)
def test_bad_input_gets_a_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = pagelens(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_port_in_use_is_named_with_its_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = pagelens("app", "--port", port, "--kernel", "torch")
    assert done.returncode == 2
    assert port in done.stderr and "--port" in done.stderr and "Traceback" not in done.stderr


def test_an_export_does_not_write_over_its_recording(tmp_path: Path) -> None:
    recording = tmp_path / "run.kvtrace"
    recording.write_bytes(b"precious")
    for option in ("--html", "--perfetto"):
        result = pagelens("export", str(recording), option, f"{tmp_path}/../{tmp_path.name}/run.kvtrace")
        assert result.returncode == 2
        assert "is the recording itself, or is named twice" in result.stderr
    both = str(tmp_path / "page")
    assert "named twice" in pagelens("export", str(recording), "--html", both, "--perfetto", both).stderr
    assert recording.read_bytes() == b"precious"
