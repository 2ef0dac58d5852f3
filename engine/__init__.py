"""Pagelens's engine: paged attention with nothing hidden. Start reading at `engine.py`."""

from .config import EngineConfig
from .debugger import Debugger
from .engine import Engine
from .engine_loop import EngineLoop
from .errors import ConfigError, ModelError, PagelensError, RequestError, TraceError
from .llm import LLM, CompletionOutput, RequestOutput
from .sampling_params import SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "Debugger",
    "Engine",
    "EngineConfig",
    "EngineLoop",
    "ModelError",
    "PagelensError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "TraceError",
]
