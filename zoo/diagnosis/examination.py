"""`doctor`: reads a set-up, asks its modality where the tokens lie, and runs every check."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from zoo import registry
from zoo.diagnosis.catalogue import SEVERITIES, Finding
from zoo.diagnosis.generic import check_biases, check_extension, check_order, check_places, check_tables
from zoo.diagnosis.read import Read, read, read_data, refusal, with_data, with_size
from zoo.diagnosis.rotary import check_rotary
from zoo.diagnosis.setup import Layout, Setup
from zoo.errors import ZooError

__all__ = ["build_check", "doctor"]

# Modality -> module with `layout(config)`, `check(setup)` and, where a recipe says more, `of_recipe(config, recipe)`.
_MODALITIES = {
    name: f"modalities.{name}.checkup" for name in ("image", "video", "events", "points", "driving", "sequence")
}
_CHECKS = (check_rotary, check_extension, check_biases, check_tables, check_order, check_places)


def doctor(
    name: str,
    *,
    size: int | tuple[int, int] | None = None,
    data: Mapping[str, Any] | str | None = None,
) -> dict[str, Any]:
    """Looks for what is wrong with a set-up, without its weights and without data.

    Args:
        name: A registered name, `"local-dir:FOLDER"`, `"hf-hub:REPOSITORY"`, the path of a config.json, or a training
            recipe (a YAML file or the name of a built-in one).
        size: Size of the inputs in use, where it is not that of training: a side or (height, width) in pixels, a
            number of points, or tokens of a sequence.
        data: What else of the data differs in use, by key, such as `{"frame_rate": 30}`; or the path of a file with
            such keys or of another config.json, whose `"data"` are taken.

    Returns:
        Plain data: `name`, `encoding`, `trained` and `target` (axes with extent, step and unit; `None` where the
        configuration cannot be used), `findings` (most severe first; of each `code`, `severity`, `title`, `what`,
        `why`, `mend`, `source`) and `errors`, their number with severity error.

    Raises:
        ZooError: If there is no such thing, or a size or key does not exist.

    Example:
        >>> report = doctor("rope-vit-t-imagenette", size=512)
        >>> [(finding["code"], finding["severity"]) for finding in report["findings"]]
        [('unseen-angles', 'error')]
    """
    found = read(name)
    setup = None
    if found.trained is not None and found.target is not None:
        if data is not None:
            found.target = with_data(found.target, read_data(data) if isinstance(data, str) else data)
        if size is not None:
            found.target = with_size(found.target, list(size) if isinstance(size, tuple) else size)
        setup = _setup(found)
    if setup is not None:
        found.findings += _checked(setup, found)
    order = {severity: place for place, severity in enumerate(SEVERITIES)}
    findings = sorted(dict.fromkeys(found.findings), key=lambda finding: order[finding.severity])
    return {
        "name": found.name,
        "encoding": setup.encoding if setup else None,
        "trained": _axes(setup.before) if setup else None,
        "target": _axes(setup.now) if setup else None,
        "findings": [finding.to_dict() for finding in findings],
        "errors": sum(finding.severity == "error" for finding in findings),
    }


def _setup(found: Read) -> Setup | None:
    """What checks are made on; `None`, with a finding, where a model cannot be built."""
    assert found.trained is not None and found.target is not None
    module = _module(found.trained)
    try:
        if found.recipe is not None and hasattr(module, "of_recipe"):
            found.target = module.of_recipe(found.target, found.recipe)
            if found.fresh:
                found.trained = found.target
    except ZooError as error:
        found.findings.append(refusal(error, "recipe-refused", "mend the value that is named"))
        return None
    for config in [found.trained] + [found.target] * (found.target != found.trained):
        if (refused := build_check(config)) is not None:
            found.findings.append(refused)
            return None
    before, now = module.layout(found.trained), module.layout(found.target)
    if len(before.axes) != len(now.axes):
        what = f"positions have {len(now.axes)} axes, in training {len(before.axes)}"
        found.findings.append(Finding("unit-differs", "error", what, "set coord_dim as in training"))
        return None
    chosen = () if found.recipe is None else tuple(found.recipe.model_options)
    return Setup(found.name, found.trained, found.target, before, now, chosen)


def _module(config: Mapping[str, Any]) -> Any:
    return importlib.import_module(_MODALITIES[config["modality"]])


def build_check(config: Mapping[str, Any]) -> Finding | None:
    """What the builder of the architecture refuses; nothing is allocated."""
    import torch

    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            registry.architecture(config).build(dict(config))
    except ZooError as error:
        return refusal(error, "bad-config", "mend the value that is named")
    return None


def _checked(setup: Setup, found: Read) -> Iterator[Finding]:
    for check in _CHECKS:
        yield from check(setup)
    module = _module(setup.target)
    yield from module.check(setup)
    if found.recipe is not None and hasattr(module, "check_recipe"):
        yield from module.check_recipe(setup, found.recipe)


def _axes(layout: Layout) -> list[dict[str, Any]]:
    return [{"name": a.name, "extent": a.extent, "step": a.step, "unit": a.unit} for a in layout.axes]
