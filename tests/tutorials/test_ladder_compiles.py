"""The ladder's kernels are GPU code too: compiled for an A100 without one, in a process without the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parents[2]

COMPILE = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from door import small_tiles
from pagelens.kernels.compile_report import inspect_code
from pagelens.kernels.compile_variants import Variant

tiles = small_tiles(group=4, num_splits=16)
values = {"GROUP": 4, "NUM_KV_HEADS": 8, "BLOCK_SIZE": 16, "HEAD_DIM": 128}
values |= {"BLOCK_M": tiles.block_m, "BLOCK_Q": tiles.block_q, "TILE": tiles.tile, "NUM_SPLITS": tiles.num_splits}
types = {"scale": "fp32", "num_seqs": "i32", "max_blocks": "i32"} | dict.fromkeys(values, "constexpr")
types |= dict.fromkeys(("out_ptr", "query_ptr", "kv_ptr"), "*bf16")
types |= dict.fromkeys(("acc_ptr", "split_max_ptr", "split_sum_ptr"), "*fp32")
types |= dict.fromkeys(("block_tables_ptr", "query_start_loc_ptr", "seq_lens_ptr"), "*i32")
for name in sys.argv[2:]:
    kernel = getattr(importlib.import_module(name), name[3:] + "_kernel")
    signature = {argument: types[argument] for argument in kernel.arg_names}
    constants = {argument: values[argument] for argument in signature if argument in values}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    done = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4, "num_stages": 2})
    variant = Variant(name, "bf16", signature, constants)
    code = inspect_code(variant, 80, done.asm["ptx"], done.asm["cubin"], done.metadata.shared)
    print(json.dumps([name, code.spill_instructions, code.stack_bytes, code.matrix_unit, code.widest_load_bits]))
"""


def test_no_step_spills_and_all_but_the_first_use_matrix_units() -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folder = ROOT / "tutorials/kernels"
    names = sorted(path.stem for path in folder.glob("[0-9]*.py"))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder), *names], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert reports == [[name, 0, 0, "mma" if name > "02" else "-", 128] for name in names]
