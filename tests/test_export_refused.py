"""What cannot be exported, written or loaded is said in one line, before any work is done."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import noise, tiny
from torch import nn

import zoo
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError, MissingDependencyError, WeightsError


@pytest.fixture
def never_traced(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("traced before it was refused")

    monkeypatch.setattr(torch.export, "export", refuse)


def said(arguments, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    lines = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pape-event-vit-n-nmnist1100", "tokenizer of events"),
        ("pape-event-det-n-nmnist-canvas", "tokenizer of events"),
        ("pape-point-vit-n-modelnet10", "grouped and sorted"),
        ("pape-ptv3-n-als3", "grouped and sorted"),
        ("pape-fusion-n-simdrive", "views and points"),
        ("pape-decoder-n-jsb", "step by step"),
    ],
)
def test_models_that_make_no_graph(name, reason, tmp_path, never_traced):
    model = zoo.load(name, pretrained=False)
    with pytest.raises(ConfigError, match=f"{name}.*cannot be exported.*{reason}"):
        zoo.export(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_exporters(module, tmp_path, monkeypatch, never_traced, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    line = said(["export", "pape-vit-n-imagenette", "--to", tmp_path / "model.onnx"], capsys)
    assert module in line and "pip install 'pape-zoo[export]'" in line


def test_missing_torchao(tmp_path, monkeypatch, never_traced):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[quant\]'"):
        zoo.export(tiny(), tmp_path / "model.pt2", int8=True)


def test_running_without_onnxruntime(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[export\]'"):
        zoo.load(str(tmp_path / "model.onnx"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "model.pt"}, r"name a file \.onnx or \.pt2"),
        ({"path": "model"}, r"name a file \.onnx or \.pt2"),
        ({"dtype": "bfloat16"}, "dtype must be one of float32, float16"),
        ({"dtype": "float16", "int8": True}, "int8 is for float32"),
        ({"size": 30}, "size 30 is not a multiple of the model's patch, 8"),
        ({"size": (32, 0)}, "size"),
    ],
)
def test_options(options, message, tmp_path, never_traced):
    path = tmp_path / options.pop("path", "model.pt2")
    with pytest.raises(ConfigError, match=message):
        zoo.export(tiny(), path, **options)


def test_other_models(tmp_path, never_traced):
    with pytest.raises(ConfigError, match="Linear is not a network of pape-zoo"):
        zoo.export(nn.Linear(2, 2), tmp_path / "model.pt2")
    features = tiny()
    features.reset_classifier(0)
    with pytest.raises(ConfigError, match="no classes"):
        zoo.export(features, tmp_path / "model.pt2")
    import timm

    vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, depth=1)
    with pytest.raises(ConfigError, match="VisionTransformer is not a network of pape-zoo"):
        zoo.export(zoo.adapt(vit, encoding="pape"), tmp_path / "model.pt2")


def test_places_that_cannot_be_written(tmp_path, never_traced):
    with pytest.raises(DataError, match="there is no folder"):
        zoo.export(tiny(), tmp_path / "absent" / "model.pt2")
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(DataError, match="it is a folder"):
        zoo.export(tiny(), tmp_path / "folder.pt2")
    with pytest.raises(DataError, match="cannot write"):
        zoo.export(tiny(), tmp_path / f"{'n' * 300}.pt2")
    with pytest.raises(DataError, match="null byte"):
        zoo.export(tiny(), tmp_path / "nul\0l.pt2")


def test_a_full_disk_leaves_the_file_before(tmp_path, file_size_limit):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"before")
    with file_size_limit(1000), pytest.raises(DataError, match="cannot write"):
        zoo.export(tiny("none"), path)
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt2"] and path.read_bytes() == b"before"


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch):
    from zoo.export import write

    monkeypatch.setattr(write._Graph, "forward", lambda self, inputs: self.model(inputs.flip(-1)))
    with pytest.raises(WeightsError, match="not written: the graph differs from the model"):
        zoo.export(tiny("rope"), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_what_exporters_cannot_do_names_the_model(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("some\noperator")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(ConfigError, match="tiny: .*encoding pape.*some operator"):
        zoo.export(tiny(), tmp_path / "model.pt2")


def foreign(path: Path, **notes: str) -> Path:
    """An ONNX file of one operator, with these notes."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    value = [onnx.helper.make_tensor_value_info(name, 1, ["batch", 3, 8, 8]) for name in ("images", "logits")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["images"], ["logits"])], "g", value[:1], value[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.helper.set_model_props(model, notes)
    path.write_bytes(model.SerializeToString())
    return path


GRAPH = {"format": "onnx", "weights": "float32", "inputs": {"images": ["batch", 3, 8, 8]}, "output": "logits"}


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ({}, "was not made by zoo export"),
        ({"pape_zoo": "{"}, "is not valid JSON"),
        ({"pape_zoo": "[]"}, "not those of zoo export"),
        (
            {"pape_zoo": json.dumps({"graph": {**GRAPH, "inputs": {"images": 3}}, "config": {}})},
            "not those of zoo export",
        ),
        ({"pape_zoo": json.dumps({"graph": {**GRAPH, "output": "soup"}, "config": {}})}, "not those of zoo export"),
        ({"pape_zoo": json.dumps({"graph": GRAPH, "config": {}})}, "schema_version"),
    ],
)
def test_foreign_onnx_files(notes, message, tmp_path):
    path = foreign(tmp_path / "model.onnx", **notes)
    with pytest.raises((WeightsError, ConfigError), match=message):
        zoo.load(str(path))


def test_files_that_are_none(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    for name, data in (("cut.onnx", b"\x08\x0a"), ("cut.pt2", b"PK"), ("other.pt2", None)):
        path = tmp_path / name
        if data is None:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("hello", "world")
        else:
            path.write_bytes(data)
        with pytest.raises(WeightsError, match=name):
            zoo.load(f"trusted:{path}" if path.suffix == ".pt2" else str(path))
    with pytest.raises(WeightsError, match="No such file"):
        zoo.load(str(tmp_path / "absent.onnx"))
    assert "name it trusted:" in said(["predict", tmp_path / "cut.pt2", "samples/golf_ball.jpg"], capsys)


def exported(tmp_path: Path) -> Path:
    """A file whose graph is another model's, since none of these tests gets as far as running it."""
    notes = {"version": "0", "config": {**tiny().config, "schema_version": 1}, "graph": GRAPH}
    return foreign(tmp_path / "model.onnx", pape_zoo=json.dumps(notes))


@pytest.mark.parametrize(
    "options",
    [{"num_classes": 7}, {"in_chans": 1}, {"pretrained": False}, {"dtype": "float16"}, {"drop_path": 0.1}]
    + [{"encoding_options": {"parabolas": 2}}, {"revision": "main"}],
)
def test_a_file_is_as_it_is(options, tmp_path):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} cannot be changed in an exported file"):
        zoo.load(str(exported(tmp_path)), **options)


def test_inputs_that_a_graph_does_not_take(tmp_path):
    model = zoo.load(str(exported(tmp_path)))
    for images in (noise(1, 4, 8, 8), noise(1, 3, 16, 8), noise(0, 3, 8, 8)):
        with pytest.raises(DataError, match=r"takes images of \(batch, 3, 8, 8\)"):
            model(images)
    for images in (noise(3, 8, 8), torch.zeros(1, 3, 8, 8, dtype=torch.uint8), np.zeros((1, 3, 8, 8))):
        with pytest.raises(DataError, match=r"floating-point tensor \(batch, 3, 8, 8\)"):
            model(images)
    with pytest.raises(DataError, match="times_s is for models with time_unit_s"):
        model(noise(1, 3, 8, 8), None, noise(1, 4))


def test_evaluation_in_another_dtype_or_with_an_extension(tmp_path, capsys):
    path = exported(tmp_path)
    assert "export it with --dtype" in said(["eval", path, "--data", tmp_path, "--dtype", "bfloat16"], capsys)
    line = said(["eval", path, "--data", tmp_path, "--extend", "yarn", "--quiet"], capsys)
    assert "no position encoding" in line


def test_cuda_without_its_runtime(tmp_path, monkeypatch):
    import onnxruntime

    from zoo.export.run import load_exported

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ConfigError, match="onnxruntime-gpu"):
        load_exported(str(exported(tmp_path)), torch.device("cuda"))
