"""pape-zoo: vision models that share one coordinate-aware attention block, parameterised by its position encoding.

Importing this package imports neither torch nor a modality; attributes are looked up when used (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zoo.errors import (
    ConfigError,
    DataError,
    HubError,
    MissingDependencyError,
    UnknownModelError,
    WeightsError,
    ZooError,
)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from zoo.adapt import adapt
    from zoo.advice import advise
    from zoo.attention import CoordinateAttention
    from zoo.cards import card
    from zoo.convert import convert
    from zoo.coordinates import Coordinates
    from zoo.diagnosis import doctor
    from zoo.encodings import encodings
    from zoo.export import export
    from zoo.finetune import finetune
    from zoo.interop import from_ultralytics, to_ultralytics
    from zoo.loading import load, save
    from zoo.predict import predictor
    from zoo.publishing import publish, push
    from zoo.reading import read
    from zoo.registry import list_models
    from zoo.transformer import Block, Encoder

# Public name -> module that defines it.
_LAZY = {
    "Block": "zoo.transformer",
    "CoordinateAttention": "zoo.attention",
    "Coordinates": "zoo.coordinates",
    "Encoder": "zoo.transformer",
    "adapt": "zoo.adapt",
    "advise": "zoo.advice",
    "card": "zoo.cards",
    "convert": "zoo.convert",
    "doctor": "zoo.diagnosis",
    "encodings": "zoo.encodings",
    "export": "zoo.export",
    "from_ultralytics": "zoo.interop",
    "list_models": "zoo.registry",
    "load": "zoo.loading",
    "predictor": "zoo.predict",
    "publish": "zoo.publishing",
    "push": "zoo.publishing",
    "read": "zoo.reading",
    "save": "zoo.loading",
    "to_ultralytics": "zoo.interop",
}
_SUBMODULES = (
    "advice",
    "coordinates",
    "diagnosis",
    "encodings",
    "finetune",
    "interop",
    "kernels",
    "position_ids",
    "training",
    "viz",
)

__all__ = [
    "Block",
    "ConfigError",
    "CoordinateAttention",
    "Coordinates",
    "DataError",
    "Encoder",
    "HubError",
    "MissingDependencyError",
    "UnknownModelError",
    "WeightsError",
    "ZooError",
    "__version__",
    "adapt",
    "advise",
    "card",
    "convert",
    "doctor",
    "encodings",
    "export",
    "finetune",
    "from_ultralytics",
    "list_models",
    "load",
    "predictor",
    "publish",
    "push",
    "read",
    "save",
    "to_ultralytics",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"zoo.{name}")
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
