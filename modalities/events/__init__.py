"""Event cameras: reading recordings of every common format, tokens of events, and networks that take them.

Names are looked up when used (PEP 562), so that presets can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalities.events.data_config import EventDataConfig
    from modalities.events.datasets import open_dataset
    from modalities.events.detector import EventDetector
    from modalities.events.evaluate import evaluate_events
    from modalities.events.events import Events
    from modalities.events.model import EventClassifier
    from modalities.events.read import EventReader, open_events
    from modalities.events.tokenizer import SpikingPatches, StreamingSpikingPatches, Tokens
    from modalities.events.tokens import EventTokens
    from modalities.events.video import EventVideo

# Public name -> module that defines it.
_LAZY = {
    "EventClassifier": "modalities.events.model",
    "EventDataConfig": "modalities.events.data_config",
    "EventDetector": "modalities.events.detector",
    "EventReader": "modalities.events.read",
    "EventTokens": "modalities.events.tokens",
    "EventVideo": "modalities.events.video",
    "Events": "modalities.events.events",
    "SpikingPatches": "modalities.events.tokenizer",
    "StreamingSpikingPatches": "modalities.events.tokenizer",
    "Tokens": "modalities.events.tokenizer",
    "evaluate_events": "modalities.events.evaluate",
    "open_dataset": "modalities.events.datasets",
    "open_events": "modalities.events.read",
}

__all__ = [
    "EventClassifier",
    "EventDataConfig",
    "EventDetector",
    "EventReader",
    "EventTokens",
    "EventVideo",
    "Events",
    "SpikingPatches",
    "StreamingSpikingPatches",
    "Tokens",
    "evaluate_events",
    "open_dataset",
    "open_events",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'modalities.events' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
