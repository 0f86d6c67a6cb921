"""How far the attention core is from dense attention in float64."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from zoo.bench.core import Core, core_function, learned
from zoo.bench.workloads import Sample
from zoo.kernels import use

__all__ = ["all_errors"]


def all_errors(cores: dict[str, Core], sample: Sample | None) -> dict[str, dict[str, float | None]]:
    """Errors of every core on one sample of its workload, of what was timed.

    Args:
        cores: Encoding and kernel, as `"pape/sdpa"`, -> what was timed.
        sample: Of their workload; `None` if all are too long for this.

    Returns:
        For each of `cores` relative Frobenius norms of what differs from float64: of `output`, and in a train step of
        `dq`, `dk`, `dv` and the gradients of all `parameters` together.
    """
    if sample is None:
        return {}
    references: dict[str, list[Tensor | None]] = {}
    errors = {}
    for name, core in cores.items():
        encoding = name.partition("/")[0]
        if encoding not in references:
            references[encoding] = _reference(core, sample)
        errors[name] = _errors(_found(core, sample), references[encoding])
    return errors


def _found(core: Core, sample: Sample) -> list[Tensor | None]:
    """Output and gradients of what was timed, for one sample: others are given no gradient."""
    rows = (slice(1), slice(None), sample.rows)
    gradient = torch.zeros_like(core.inputs.gradient)
    gradient[rows] = core.inputs.gradient[rows]
    out, gradients = core(gradient)
    return [out[rows], *(None if one is None else one[rows] for one in gradients[1:4]), *gradients[4:]]


def _reference(core: Core, sample: Sample) -> list[Tensor | None]:
    """The same by dense attention in float64, from the same numbers."""
    encoding = copy.deepcopy(core.encoding).double()
    x, q, k, v = (one.detach()[:1, ..., sample.rows, :].double().requires_grad_() for one in core.tensors)
    with torch.set_grad_enabled(core.train), use("eager"):
        frame = encoding.frame(sample.coords.to(dtype=torch.float64), torch.float64)
        out = core_function(encoding, frame, core.scale, None)(x, q, k, v)
    if not core.train:
        return [out]
    gradient = core.inputs.gradient[:1, :, sample.rows].double()
    return [out, *torch.autograd.grad(out, [q, k, v, *learned(encoding)], gradient, allow_unused=True)]


def _errors(found: list[Tensor | None], reference: list[Tensor | None]) -> dict[str, float | None]:
    errors = {"output": _relative(found[:1], reference[:1])}
    if len(reference) > 1:
        errors |= {name: _relative([found[i]], [reference[i]]) for i, name in enumerate(("dq", "dk", "dv"), 1)}
        errors["parameters"] = _relative(found[4:], reference[4:])
    return errors


def _relative(found: list[Tensor | None], reference: list[Tensor | None]) -> float | None:
    """Relative Frobenius norm of the difference of all tensors together; `None` where there is nothing to compare."""
    both = [
        (a.detach().double(), b.detach())
        for a, b in zip(found, reference, strict=True)
        if a is not None and b is not None
    ]
    size = sum(float(b.norm()) ** 2 for _, b in both)
    return (sum(float((a - b).norm()) ** 2 for a, b in both) / size) ** 0.5 if size else None
