# mypy: allow-untyped-defs, allow-incomplete-defs
"""What the Numba kernels share: numbers that NumPy has no name for, and how the kernels are compiled.

NumPy and Numba know neither bfloat16 nor how to compute in float16, so kernels are handed the bits of such numbers as
integers, whose type says what they mean, and compute in float32:

    dtype of the tensor     float32     bfloat16     float16
    handed over as          float32     int16        uint16
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

LOG2_E = np.float32(np.log2(np.e))  # powers of 2 are cheaper than powers of e
HANDED_OVER_AS = {torch.float32: torch.float32, torch.bfloat16: torch.int16, torch.float16: torch.uint16}

BIAS = 112 << 23  # by how much the exponents of float16 and float32 count differently, where a float32 has its exponent


def numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor of one of these dtypes, as a kernel takes it."""
    return tensor.view(HANDED_OVER_AS[tensor.dtype]).numpy()


def num_threads() -> int:
    """As many as torch uses."""
    return min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)


def launch(kernel: Any, *arguments: Any) -> None:
    """Run a kernel whose last argument is the number of threads that it is for."""
    with _launch:
        numba.set_num_threads(arguments[-1])
        kernel(*arguments)


_launch = threading.Lock()
"""Numba's plainest thread pool allows one launch at a time, and two launches would share the cores anyway."""


FAST: dict[str, Any] = {"fastmath": True, "error_model": "numpy"}
"""Sums in any order, as vector code needs it; no exception where something is divided by 0."""

inner = njit(**FAST)
"""Decorates what kernels call."""


def compiled(**options: bool) -> Callable[[Any], Any]:
    """`njit`, whose result is kept for the next process, unless there is no folder to keep it in."""

    def decorate(function):
        try:
            return njit(cache=True, **FAST, **options)(function)
        except RuntimeError:
            return njit(**FAST, **options)(function)

    return decorate


def _forget_older_kernels() -> None:
    """Numba compiles a kernel again when its own file has changed, and would miss a change of those that it builds on.

    This looks where Numba keeps them by default; whoever changes a kernel with NUMBA_CACHE_DIR set must empty it.
    """
    here = Path(__file__).parent
    with suppress(OSError):  # it is not our folder, or another process does the same
        changed = max((file.stat().st_mtime for file in here.glob("numba_*.py")), default=0.0)
        for index in (here / "__pycache__").glob("numba_*.nbi"):
            if index.stat().st_mtime < changed:
                index.unlink()


_forget_older_kernels()


def widen(number: Any) -> Any:
    """The float32 that a number in memory stands for; for use in kernels only."""
    raise NotImplementedError


@overload(widen)
def _widen(number):
    if number == types.int16:  # bfloat16 is the upper half of a float32
        return lambda number: np.int32(np.int32(number) << 16).view(np.float32)
    if number == types.uint16:

        def from_float16(number):  # a narrower exponent, that counts from elsewhere
            size = np.int32(number) & 0x7FFF
            normal = np.int32((size << 13) + BIAS).view(np.float32)
            if size >= 0x7C00:  # infinite, or no number
                normal = np.int32(0x7F800000 | (size << 13)).view(np.float32)
            value = normal if size >= 0x400 else np.float32(size) * np.float32(2.0**-24)
            return value if np.int16(number) >= 0 else -value

        return from_float16
    return lambda number: number


def narrow(number: Any, target: Any) -> Any:
    """A float32 as the array `target` stores it, rounded to even; for use in kernels only."""
    raise NotImplementedError


@overload(narrow)
def _narrow(number, target):
    if target.dtype == types.int16:

        def to_bfloat16(number, target):
            bits = np.float32(number).view(np.int32)
            return np.int16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)

        return to_bfloat16
    if target.dtype == types.uint16:

        def to_float16(number, target):
            bits = np.float32(number).view(np.int32)
            size = bits & 0x7FFFFFFF
            if size >= BIAS + 0x800000:
                rounded = (size - BIAS + 0xFFF + ((size >> 13) & 1)) >> 13
                half = np.int32(0x7C00) if rounded > 0x7C00 else rounded  # too large is infinite
            else:
                half = np.int32(np.rint(abs(number) * np.float32(2.0**24)))
            if size > 0x7F800000:
                half = np.int32(0x7E00)  # no number
            return np.uint16(half | ((bits >> 16) & 0x8000))

        return to_float16
    return lambda number, target: number


@inner
def exp2(x):
    """2 ** x for x <= 0, to 2e-7: a polynomial for the fraction, and the whole part straight into the exponent."""
    x = max(x, np.float32(-126))
    whole = np.floor(x)
    part = x - whole
    value = np.float32(0.00187757658) * part + np.float32(0.00898934063)
    value = value * part + np.float32(0.0558263175)
    value = value * part + np.float32(0.240153611)
    value = value * part + np.float32(0.693153083)
    value = value * part + np.float32(0.99999994)
    return value * np.int32((np.int32(whole) + 127) << 23).view(np.float32)


@intrinsic
def ask_for(typing_context, array, index):
    """Have the processor fetch the cache line of array[index] (flat), while the program goes on."""

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(pointer, [arguments[1]]), cgutils.voidptr_t)
        whole = ir.IntType(32)
        takes = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, whole, whole, whole])
        prefetch = cgutils.get_or_insert_function(builder.module, takes, "llvm.prefetch.p0")
        builder.call(prefetch, [address, *(ir.Constant(whole, number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, index), generate
