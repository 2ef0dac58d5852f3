"""What triton_status says where Triton cannot run. Each case is a process of its own: triton is imported once."""

import os
import subprocess
import sys

import pytest
import torch

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
REMEDY = 'set TRITON_INTERPRET=1 before anything imports triton or transformers, or use kernel="torch"'


def python(code, **environment):
    """Run code without TRITON_INTERPRET, and return what it prints."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PRINT_STATUS = """
from pagelens.kernels.launch import triton_status
print(*triton_status(), sep="|")
"""


def test_without_triton_the_rest_works():
    code = """
import sys
sys.modules["triton"] = None  # import triton: ModuleNotFoundError
import torch
from pagelens.kernels import launch, reference
query, kv = torch.ones(1, 2, 16), torch.ones(1, 2, 1, 8, 16)
table, start, length = (torch.tensor(x, dtype=torch.int32) for x in ([[0]], [0, 1], [1]))
assert torch.equal(reference.paged_attention(query, kv, table, start, length, scale=1.0), query)
"""
    available, interpreted, reason = python(code + PRINT_STATUS).split("|")
    assert (available, interpreted) == ("False", "False")
    assert reason.startswith("triton is not installed (its wheels are for Linux only") and 'kernel="torch"' in reason


def test_kernel_modules_that_need_no_triton_do_not_import_it():
    code = """
import sys
import pagelens.kernels.launch, pagelens.kernels.reference
print("triton" in sys.modules)
"""
    assert python(code, TRITON_INTERPRET="1") == "False"


@no_cuda
@pytest.mark.triton
def test_variable_not_set():
    code = PRINT_STATUS + 'import sys; print("triton" in sys.modules)'
    status, loaded = python(code).splitlines()
    assert status == f"False|False|there is no CUDA device and TRITON_INTERPRET is not set: {REMEDY}"
    assert loaded == "False"  # asking must not spoil a later import with the variable set


@no_cuda
@pytest.mark.triton
@pytest.mark.parametrize("late", ["", 'import os; os.environ["TRITON_INTERPRET"] = "1"'])
def test_triton_was_imported_without_the_variable(late):
    status = python(f"import triton; {late}" + PRINT_STATUS)
    assert status == f"False|False|there is no CUDA device and triton was imported without TRITON_INTERPRET=1: {REMEDY}"


@pytest.mark.triton
def test_interpreted():
    status = python(PRINT_STATUS, TRITON_INTERPRET="1")
    assert status == "True|True|there is no CUDA device, so the Triton kernels run under Triton's interpreter"


@no_cuda
@pytest.mark.triton
def test_a_compiled_kernel_refuses_cpu_tensors():
    code = """
import torch, triton
from pagelens.kernels.kv_ops import write_kv
try:
    write_kv(torch.ones(1, 1, 16), torch.ones(1, 1, 16), torch.ones(1, 2, 1, 8, 16), torch.tensor([0]))
except ValueError as error:
    print(error)
"""
    assert python(code) == f"the tensors are on cpu but the Triton kernels are compiled for a GPU: {REMEDY}"
