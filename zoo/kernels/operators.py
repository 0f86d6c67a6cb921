"""Operators that torch.compile takes apart, so that compiled code launches the kernels itself.

Only compiled code on CUDA imports this: making such operators imports Triton.
"""

from __future__ import annotations

from typing import Any

import torch

from zoo.kernels import coefficients as _coefficients
from zoo.kernels import fused
from zoo.kernels import rows as _rows
from zoo.kernels.launch import register

__all__ = ["attention", "attention_rows", "coefficients"]

attention = register(fused.OPERATION, torch.library.triton_op, "zoo::attention_launched")
coefficients = register(_coefficients.OPERATION, torch.library.triton_op, "zoo::coefficients_launched")
attention_rows: Any = torch.library.triton_op("zoo::attention_rows_launched", _rows.rows, mutates_args=())
attention_rows.register_fake(_rows.fake_rows)
