"""Every encoding of the registry makes a graph for pictures of any size."""

from __future__ import annotations

from typing import Any

import pytest
from exported import difference, noise, session, tiny

import zoo

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

FAST = ("cpb",)
EXTENDED: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic-ntk": ("rope", {"extend": "dynamic-ntk", "extent": 4}),
    "yarn": ("rope", {"extend": "yarn", "extent": 4, "factor": 2}),
    "rescale": ("pape", {"extend": "rescale", "factor": 2}),
    "pi": ("table", {"extend": "pi", "factor": 2}),
    "sincos+pape": ("sincos+pape", {}),
    "learned+rope": ("learned+rope", {}),
}


def names() -> list[Any]:
    every = [*zoo.encodings(), *EXTENDED]
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in every]


@pytest.mark.parametrize("name", names())
def test_any_size(name, tmp_path):
    encoding, options = EXTENDED.get(name, (name, {}))
    model = tiny(encoding, encoding_options=options)
    zoo.export(model, tmp_path / "model.onnx")
    opened = session(tmp_path / "model.onnx")
    for shape in [(1, 3, 40, 56), (3, 3, 64, 24), (1, 3, 200, 136), (2, 3, 32, 8)]:
        assert difference(model, opened, noise(*shape)) < 1e-4, shape


@pytest.mark.slow
def test_padded_pictures(tmp_path):
    model = tiny(size_policy="pad")
    zoo.export(model, tmp_path / "model.onnx")
    opened = session(tmp_path / "model.onnx")
    for shape in [(1, 3, 40, 56), (3, 3, 61, 27), (1, 3, 199, 130)]:
        assert difference(model, opened, noise(*shape)) < 1e-4, shape


@pytest.mark.slow
def test_a_table_that_does_not_stretch_has_no_other_cells(tmp_path):
    model = tiny("learned", encoding_options={"stretch": False, "grid": 8})
    zoo.export(model, tmp_path / "model.onnx")
    opened = session(tmp_path / "model.onnx")
    assert difference(model, opened, noise(1, 3, 56, 24)) < 1e-4  # Cells 1 to 7 of 0 to 7.
    with pytest.raises(Exception, match="out of data bounds"):
        opened.run(None, {"images": noise(1, 3, 24, 64).numpy()})
