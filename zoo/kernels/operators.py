"""Operators that torch.compile takes apart, so that compiled code launches the kernels itself.

Only compiled code on CUDA imports this: making such operators imports Triton.
"""

from __future__ import annotations

import hashlib
import inspect
from types import ModuleType
from typing import Any

import torch

from zoo.kernels import coefficients as _coefficients
from zoo.kernels import (
    fused,
    launch,
    plans,
    triton_attention,
    triton_attention_backward,
    triton_attention_rows,
    triton_coefficients,
    triton_polar,
)
from zoo.kernels import polar as _polar
from zoo.kernels import rows as _rows
from zoo.kernels.launch import register

__all__ = ["attention", "attention_rows", "coefficients", "polar_attention"]


def _digest(*modules: ModuleType) -> str:
    return hashlib.sha256("".join(map(inspect.getsource, modules)).encode()).hexdigest()[:12]


# PyTorch keeps compiled code on disk by the names of operators and not by what they are taken apart into: code that an
# earlier version left there must not run for this one.
_VERSION = _digest(
    _coefficients, fused, launch, plans, _polar, _rows, triton_attention, triton_attention_backward,
    triton_attention_rows, triton_coefficients, triton_polar,
)  # fmt: skip

attention = register(fused.OPERATION, torch.library.triton_op, f"zoo::attention_{_VERSION}")
coefficients = register(_coefficients.OPERATION, torch.library.triton_op, f"zoo::coefficients_{_VERSION}")
polar_attention = register(_polar.OPERATION, torch.library.triton_op, f"zoo::polar_attention_{_VERSION}")
attention_rows: Any = torch.library.triton_op(f"zoo::attention_rows_{_VERSION}", _rows.rows, mutates_args=())
attention_rows.register_fake(_rows.fake_rows)
