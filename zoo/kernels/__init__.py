"""Attention kernels behind one seam: `attend` is the only place in the library that calls one."""

from zoo.kernels.dispatch import attend, attention_weights
from zoo.kernels.select import BACKENDS, Choice, select, trace, use

__all__ = ["BACKENDS", "Choice", "attend", "attention_weights", "select", "trace", "use"]
