"""The script for a GPU takes its whole path without one, and notices a kernel that is wrong."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.triton

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_dry_run_passes_and_leaves_nothing_out():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--dry-run"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=450)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("all equal")
    skipped = [line for line in done.stdout.splitlines() if "skipped" in line]
    assert skipped == ["  torch.bfloat16  skipped: the interpreter multiplies it wrongly"]
    rates = [line for line in done.stdout.splitlines() if line.endswith(" s") and "tokens/s" in line]
    assert len(rates) == 5, "the engine three times and transformers twice, none of them stopped early"


def test_without_a_gpu_it_says_what_to_do():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, str(BENCHMARKS / "gpu.py")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "give --dry-run" in done.stderr


@pytest.fixture
def gpu_kernels(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_kernels")


def test_a_wrong_kernel_is_noticed(gpu_kernels, monkeypatch):
    shapes, cpu = gpu_kernels.DRY_SHAPES[:1], torch.device("cpu")
    assert gpu_kernels.check_oracle(shapes, [torch.float32], cpu)
    right = gpu_kernels.paged_attention
    monkeypatch.setattr(gpu_kernels, "paged_attention", lambda *args, **options: right(*args, **options) * 1.001)
    assert not gpu_kernels.check_oracle(shapes, [torch.float32], cpu)
    assert not gpu_kernels.print_times(shapes, torch.float32, cpu, dry=True), "the rivals compute something else"


def test_floors_count_each_key_once_and_each_visible_pair(gpu_kernels):
    decode = gpu_kernels.Shape("", 3, 10, 1, num_heads=4, num_kv_heads=2, head_dim=8)
    assert decode.bytes(2) == 3 * 10 * 2 * 2 * 8 * 2 and decode.flops == 3 * 10 * 4 * 8 * 4
    chunk = gpu_kernels.Shape("", 1, 5, 3, num_heads=1, num_kv_heads=1, head_dim=1)
    assert chunk.flops == 4 * (3 + 4 + 5)
