"""Whether the Triton and Numba kernels can run here, and the rules of running them under Triton's interpreter.

Nothing in this file needs triton or numba to be installed. It is the one place that looks whether they are there; the
modules that import them at their top (``paged_attention.py``, ``kv_ops.py`` and the ``numba_*.py``) are imported only
after ``triton_status`` or ``numba_obstacle`` said yes.
"""

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch

interpreter_lock = threading.RLock()
"""Held during an interpreted launch. The interpreter replaces functions of the module ``triton.language`` while a
kernel runs and puts them back afterwards: a second thread would find them gone in the middle of its own kernel."""

REMEDY = 'set TRITON_INTERPRET=1 before anything imports triton or transformers, or use kernel="torch"'


class TritonStatus(NamedTuple):
    """Whether the Triton kernels can run in this process.

    Attributes:
        available: they can.
        interpreted: they run under Triton's interpreter: on the CPU, in numpy, one program after the other.
        reason: one sentence for a person: how they run, or why they cannot and what to do about it.
    """

    available: bool
    interpreted: bool
    reason: str


def triton_status() -> TritonStatus:
    """Say whether the Triton kernels can run here, and if not, why and what helps.

    TRITON_INTERPRET counts when ``triton`` is imported: that decorates triton's own standard library, for the compiler
    or for the interpreter, once and for all. So a loaded triton is asked what became of a function of that library, and
    the environment is asked only while triton is not loaded. A triton that could not run anyway is left unloaded.
    """
    if _find_triton() is None:
        return TritonStatus(
            False,
            False,
            f'triton is not installed (its wheels are for Linux only, this is {sys.platform}): use kernel="torch"',
        )
    cuda = torch.cuda.is_available()
    asked = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
    if "triton" not in sys.modules and not cuda and not asked:
        return TritonStatus(False, False, f"there is no CUDA device and TRITON_INTERPRET is not set: {REMEDY}")

    import triton.language as tl

    if is_interpreted(tl.zeros):
        because = "TRITON_INTERPRET is set" if cuda else "there is no CUDA device"
        return TritonStatus(True, True, f"{because}, so the Triton kernels run under Triton's interpreter")
    if cuda:
        return TritonStatus(True, False, f"the Triton kernels are compiled for {torch.cuda.get_device_name()}")
    return TritonStatus(
        False, False, f"there is no CUDA device and triton was imported without TRITON_INTERPRET=1: {REMEDY}"
    )


def _find_triton() -> object | None:
    try:
        return importlib.util.find_spec("triton")
    except (ImportError, ValueError):  # ValueError: a stub without a spec in sys.modules
        return None


def numba_obstacle(device: torch.device) -> str:
    """Why the Numba kernels cannot run on this device, with what helps; empty if they can."""
    if device.type != "cpu":
        return f'Numba compiles for the CPU and the model is on {device}: use kernel="triton" or "torch"'
    try:
        import numba  # noqa: F401
    except ImportError as error:  # not there, or it refuses the numpy that is
        return f'Numba cannot be imported ({error}): pip install numba, or use kernel="torch", which is slower'
    return ""


def is_interpreted(kernel: Any) -> bool:
    """Tell whether ``@triton.jit`` made this function for the interpreter, and not for the compiler."""
    from triton.runtime.jit import JITFunction

    return not isinstance(kernel, JITFunction)


@contextmanager
def launching(kernel: Any, device: torch.device) -> Iterator[None]:
    """Surround every launch of a kernel with what its way of running needs.

    Compiled: the GPU of its tensors is the current one. Interpreted: the lock is held, and the interpreter's overflow
    check is off, which repeats every 32-bit integer operation in 64 bits and costs more than the operation. (In these
    kernels block ids and token numbers are in 64 bits when they are multiplied. ``overflow_checks`` turns it on.)

    Raises:
        ValueError: a compiled kernel was given tensors that are not on a GPU.
    """
    if not is_interpreted(kernel):
        if device.type != "cuda":
            raise ValueError(f"the tensors are on {device} but the Triton kernels are compiled for a GPU: {REMEDY}")
        with torch.cuda.device(device):
            yield
        return
    from triton.runtime.interpreter import interpreter_builder

    with interpreter_lock:
        before = interpreter_builder.options
        interpreter_builder.options = replace(before, sanitize_overflow=_check_overflow)
        try:
            yield
        finally:
            interpreter_builder.options = before


_check_overflow = False


@contextmanager
def overflow_checks() -> Iterator[None]:
    """Let the interpreter check 32-bit integer operations for overflow, as it does by default; for tests."""
    global _check_overflow
    _check_overflow = True
    try:
        yield
    finally:
        _check_overflow = False
