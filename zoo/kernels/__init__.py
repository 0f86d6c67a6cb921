"""Attention kernels behind one seam: `attend` is the only place in the library that calls one."""

from zoo.kernels.dispatch import attend, attention_weights
from zoo.kernels.explain import Explanation, explain
from zoo.kernels.select import BACKENDS, FORCIBLE, Call, Choice, forced, select, trace, use

__all__ = [
    "BACKENDS",
    "FORCIBLE",
    "Call",
    "Choice",
    "Explanation",
    "attend",
    "attention_weights",
    "explain",
    "forced",
    "select",
    "trace",
    "use",
]
