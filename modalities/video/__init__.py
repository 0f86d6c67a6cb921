"""Video: clips as tubelets of space and time, and networks that take them.

Names are looked up when used (PEP 562), so that presets can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalities.video.clip import Clip
    from modalities.video.data_config import VideoDataConfig
    from modalities.video.model import VideoClassifier
    from modalities.video.read import ClipReader, open_clip
    from modalities.video.results import ClipResults

# Public name -> module that defines it.
_LAZY = {
    "Clip": "modalities.video.clip",
    "ClipReader": "modalities.video.read",
    "ClipResults": "modalities.video.results",
    "VideoClassifier": "modalities.video.model",
    "VideoDataConfig": "modalities.video.data_config",
    "open_clip": "modalities.video.read",
}

__all__ = ["Clip", "ClipReader", "ClipResults", "VideoClassifier", "VideoDataConfig", "open_clip"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'modalities.video' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
