"""What the kernels become on GPUs that are not here: compiled in a process without the interpreter, then inspected."""

import json
import os
import subprocess
import sys

import pytest

from pagelens.kernels.compile_report import LINE, TITLES, Report, table_line

pytestmark = pytest.mark.triton

SHARED_BYTES = {"sm_75": 65536, "sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448}
SHARED_BYTES |= {"sm_120": 101376}
"""What one program may have of shared memory: CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability", less the 1 KB that the system keeps."""

MATRIX_UNIT = dict.fromkeys(SHARED_BYTES, "mma") | {"sm_75": "-", "sm_90": "wgmma", "sm_100": "tcgen05"}
"""What many rows are multiplied by."""


@pytest.fixture(scope="module")
def reports():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pagelens.kernels.compile_report", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def chosen(reports, kernel, dtype):
    found = [r for r in reports if r["kernel"] == kernel and r["variant"].startswith(dtype)]
    assert {r["target"] for r in found} == set(SHARED_BYTES)
    return found


def test_every_launch_is_compiled_for_every_gpu(reports, capsys):
    launches = {(report["kernel"], report["variant"]) for report in reports}
    assert len(launches) == 15 and len(reports) == len(launches) * len(SHARED_BYTES)
    with capsys.disabled():  # so that the log of a test run has the table
        print("", LINE.format(*TITLES), *(table_line(Report(**report)) for report in reports), sep="\n")


def test_nothing_spills(reports):
    for report in reports:
        assert (report["stack_bytes"], report["spill_instructions"]) == (0, 0), report


def test_every_kernel_loads_16_bytes_at_once(reports):
    for report in reports:
        assert report["widest_load_bits"] >= 128 and report["narrow_loads"] == 0, report


def test_every_program_finds_its_shared_memory(reports):
    for report in reports:
        assert report["shared_bytes"] <= SHARED_BYTES[report["target"]], report


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_is_multiplied_by_matrix_units(reports, dtype):
    """Sixteen rows go to mma on every GPU that has it. Hopper and Blackwell have instructions of their own for many."""
    for report in chosen(reports, "paged_attention_kernel", dtype):
        many, few = MATRIX_UNIT[report["target"]], "-" if report["target"] == "sm_75" else "mma"
        assert report["matrix_unit"] == (many if "prefill" in report["variant"] else few), report
        assert (report["matrix_instructions"] > 0) == (report["target"] != "sm_75"), report


def test_float32_stays_float32(reports):
    """tl.dot's default on a GPU is TF32, with 10 bits of mantissa, which the interpreter cannot show."""
    for report in chosen(reports, "paged_attention_kernel", "fp32"):
        assert not report["tf32"], report
        assert report["matrix_unit"] == "-", report


def test_tf32_would_be_seen():
    """The check above is worth something only if the inspected text changes with the default precision."""
    code = """
from pathlib import Path
import importlib.util, tempfile
from pagelens.kernels import compile_report, paged_attention
from pagelens.kernels.compile_variants import attention_variant
source = Path(paged_attention.__file__).read_text().replace(', input_precision="ieee"', "")
path = Path(tempfile.mkdtemp()) / "mutant.py"
path.write_text(source)
spec = importlib.util.spec_from_file_location("pagelens.kernels.mutant", path)
mutant = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutant)
variant = attention_variant("fp32", 80, long_queries=False, head_dim=64)
paged_attention.paged_attention_kernel = mutant.paged_attention_kernel
print(compile_report.compile_variant(variant, 80).tf32)
"""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr
