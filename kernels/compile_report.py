"""Compile the kernels for GPUs that are not here, and look at the machine code they become.

``python -m pagelens.kernels.compile_report`` prints a table; it needs triton, but no GPU:

    kernel            variant                        target  registers  stack  spills  shared  matrix unit …
    paged_attention   bf16 prefill d128 g4           sm_90         128      0       0   81920  20 wgmma    …

The NVIDIA wheel of triton carries ``ptxas``, ``cuobjdump`` and ``nvdisasm``. Run it in a process of its own, without
TRITON_INTERPRET: a process that interprets cannot compile.

What the columns are read from:

- registers and stack: ``cuobjdump -res-usage`` on the cubin.
- spills: STL and LDL instructions (stores to and loads from local memory) in the SASS. STACK > 0 says the same; LOCAL
  stays 0 even with spills.
- matrix unit: the PTX instruction that tl.dot became, and how often it stands there: mma (Ampere on), wgmma (Hopper),
  tcgen05 (Blackwell), or "-" where numbers are multiplied and added one by one, as float32 is, and all on Turing.
- load bits: the widest global load, per thread and instruction: LDG and LDGSTS (cp.async) in the SASS; "narrow" counts
  those of 8 or 16 bits, which a kernel makes that has to load half-precision elements one by one.
"""

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from .compile_variants import Variant, variants

TARGETS = (75, 80, 86, 89, 90, 100, 120)
"""Compute capabilities, ten times: Turing (T4), Ampere (A100, RTX 30), Ada (RTX 40), Hopper (H100), Blackwell (B200,
RTX 50)."""

MATRIX_UNITS = {"mma": r"\bmma\.sync", "wgmma": r"\bwgmma\.mma_async", "tcgen05": r"\btcgen05\.mma"}


@dataclass(frozen=True)
class Report:
    """What one variant became on one target (the module's docstring says how each value is found)."""

    kernel: str
    variant: str
    target: str
    registers: int
    stack_bytes: int
    spill_instructions: int
    shared_bytes: int
    matrix_unit: str
    matrix_instructions: int
    widest_load_bits: int
    narrow_loads: int
    tf32: bool


def compile_variant(variant: Variant, capability: int) -> Report:
    """Compile one variant for sm_<capability> and inspect the result; no GPU is needed.

    Raises:
        RuntimeError: triton was imported with TRITON_INTERPRET=1, so its functions are not for the compiler.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from . import kv_ops, merge_splits, paged_attention
    from .availability import is_interpreted

    (kernel,) = (vars(m)[variant.kernel] for m in (paged_attention, merge_splits, kv_ops) if variant.kernel in vars(m))
    if is_interpreted(kernel):
        raise RuntimeError("TRITON_INTERPRET=1 was set when triton was imported: compile in a process without it")
    # What a launch finds out by itself: torch's memory is 16-byte aligned. Without it loads stay narrow.
    pointers = [i for i, name in enumerate(kernel.arg_names) if variant.signature[name].startswith("*")]
    source = ASTSource(
        kernel,
        {name: variant.signature[name] for name in kernel.arg_names},
        constexprs=variant.constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in pointers},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    return inspect_code(variant, capability, compiled.asm["ptx"], compiled.asm["cubin"], compiled.metadata.shared)


def inspect_code(variant: Variant, capability: int, ptx: str, cubin: bytes, shared: int) -> Report:
    """Read registers, stack, spills, matrix instructions and load widths off the compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _tool("cuobjdump", "-res-usage", str(path))
        sass = _tool("nvdisasm", "-c", str(path))
    registers, stack = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))  # type: ignore[index]
    units = {unit: len(re.findall(pattern, ptx)) for unit, pattern in MATRIX_UNITS.items()}
    unit = max(units, key=lambda name: units[name])
    loads = re.findall(r"\bLDG(?:STS)?((?:\.\w+)+)", sass)
    widths = [int(width) for modifiers in loads for width in re.findall(r"\.(64|128|256)\b", modifiers) or [32]]
    return Report(
        kernel=variant.kernel,
        variant=variant.name,
        target=f"sm_{capability}",
        registers=registers,
        stack_bytes=stack,
        spill_instructions=len(re.findall(r"\b(?:STL|LDL)\b", sass)),
        shared_bytes=shared,
        matrix_unit=unit if units[unit] else "-",
        matrix_instructions=units[unit],
        widest_load_bits=max(widths, default=0),
        narrow_loads=sum(bool(re.search(r"\.[US](?:8|16)\b", modifiers)) for modifiers in loads),
        tf32=".tf32" in ptx,
    )


def _tool(name: str, *arguments: str) -> str:
    from triton import knobs

    path = getattr(knobs.nvidia, name).path
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


TITLES = ("kernel", "variant", "target", "registers", "stack", "spills", "shared", "matrix unit", "load bits", "narrow")
LINE = "{:<18}{:<31}{:<8}{:>9}{:>7}{:>8}{:>8}  {:<12}{:>10}{:>8}"


def table_line(r: Report) -> str:
    """Format one report as a line of the table."""
    unit = f"{r.matrix_instructions} {r.matrix_unit}" + (" tf32" if r.tf32 else "")
    numbers = (r.registers, r.stack_bytes, r.spill_instructions, r.shared_bytes)
    name = r.kernel.removesuffix("_kernel")
    return LINE.format(name, r.variant, r.target, *numbers, unit, r.widest_load_bits, r.narrow_loads)


def main() -> None:
    """Print the table, or with ``--json`` one report a line."""
    as_json = "--json" in sys.argv[1:]
    if not as_json:
        print(LINE.format(*TITLES))
    work = [pair for same in zip(*map(variants, TARGETS), strict=True) for pair in zip(same, TARGETS, strict=True)]
    with ProcessPoolExecutor() as pool:
        for report in pool.map(compile_variant, *zip(*work, strict=True)):
            print(json.dumps(asdict(report)) if as_json else table_line(report), flush=True)


if __name__ == "__main__":
    main()
