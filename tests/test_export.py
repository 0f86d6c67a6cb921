"""Exported graphs agree with the models at sizes and batches that were never traced, and refuse what they cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from detection_toys import TINY as TINY_DETECTOR
from exported import difference, noise, run, session, tiny
from saved_models import randomise
from training_toys import write_toys
from video_models import clips, video_model

import zoo
from zoo.errors import ConfigError, DataError

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")

TOLERANCE = 1e-4
# Batches of one and three, above the trained 32 px, not square, one row of patches; the trace is 2 x 3 x 40 x 56.
SHAPES = [(1, 3, 40, 56), (3, 3, 64, 24), (1, 3, 200, 136), (2, 3, 16, 16), (1, 3, 8, 240), (1, 3, 32, 8)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    model, path = tiny(num_classes=2), tmp_path_factory.mktemp("export") / "model.onnx"
    return model, path, zoo.export(model, path)


@pytest.mark.parametrize("shape", SHAPES)
def test_classifier_at_sizes_never_traced(classifier, shape):
    model, path, _ = classifier
    assert difference(model, session(path), noise(*shape)) < TOLERANCE


def test_what_the_file_says(classifier):
    model, path, report = classifier
    opened = session(path)
    (images,), (logits,) = opened.get_inputs(), opened.get_outputs()
    assert (images.name, images.shape) == ("images", ["batch", 3, "height", "width"])
    assert (logits.name, logits.shape) == ("logits", ["batch", 2])
    notes = opened.get_modelmeta().custom_metadata_map
    assert json.loads(notes["labels"]) == ["dark", "bright"] and notes["task"] == "classification"
    assert json.loads(notes["preprocessing"]) == model.data_config.to_dict()
    import onnx

    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert [entry.version for entry in proto.opset_import if not entry.domain] == [report.opset] == [zoo.export.OPSET]
    assert report.difference < TOLERANCE and report.bytes == path.stat().st_size
    assert "multiple of 8" in str(report) and f"opset {report.opset}" in str(report)
    assert str(Path(zoo.__file__).parent).encode() not in path.read_bytes()  # No folder of who exported it.


def test_sizes_that_no_patch_divides_are_refused_by_the_graph(classifier):
    _, path, _ = classifier
    with pytest.raises(Exception, match="(?i)reshape"):
        run(session(path), noise(1, 3, 44, 56))
    with pytest.raises(DataError, match="44 x 56 pixels do not divide into 8 x 8"):
        zoo.load(str(path))(noise(1, 3, 44, 56))


def test_a_graph_that_folds_refuses_what_is_too_large_to_fold(classifier):
    model, path, _ = classifier
    opened = session(path)
    assert difference(model, opened, noise(1, 3, 8, 255 * 8)) < TOLERANCE  # Half of 255 steps, squared: 16,257.
    with pytest.raises(Exception, match="out of data bounds"):
        run(opened, noise(1, 3, 8, 257 * 8))
    with pytest.raises(DataError, match="does not take images of 1 x 3 x 8 x 2056"):
        zoo.load(str(path))(noise(1, 3, 8, 257 * 8))


def test_the_file_predicts_as_the_model(classifier):
    model, path, _ = classifier
    exported = zoo.load(str(path))
    assert exported.config["labels"] == model.config["labels"] and exported.data_config == model.data_config
    assert exported.load_report.kernel == "onnx" and not exported.training
    picture = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    for size in (None, 64):
        ours, theirs = (zoo.predictor(one, size=size)(picture) for one in (model, exported))
        assert ours.labels == theirs.labels
        assert np.allclose(ours.scores, theirs.scores, atol=TOLERANCE)
    assert zoo.predictor(str(path))(picture).labels == zoo.predictor(model)(picture).labels


def test_the_file_is_measured_as_the_model(classifier, tmp_path, monkeypatch, capsys):
    from zoo.cli.main import main
    from zoo.evaluate import evaluate_data

    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    model, path, _ = classifier
    data = write_toys(tmp_path / "toys", train=2, validation=24)
    with pytest.raises(SystemExit) as stop:
        main(["eval", str(path), "--data", str(data), "--sizes", "32,64", "--json", "--quiet"])
    report = json.loads(capsys.readouterr().out)
    assert not stop.value.code and report["dtype"] == "float32" and report["images"] == 24
    expected = evaluate_data(model, data, sizes=[32, 64])["results"]
    assert [row["top1"] for row in report["results"]] == [row["top1"] for row in expected]


def test_the_command(tmp_path, capsys):
    from zoo.cli.main import main

    zoo.save(tiny("none"), tmp_path / "tiny")
    arguments = ["export", f"local-dir:{tmp_path / 'tiny'}", "--to", str(tmp_path / "a.pt2")]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--size", "32x48"])
    said = capsys.readouterr()
    assert not stop.value.code and not said.err
    assert "a.pt2: torch.export, float32" in said.out and "height 32, width 48) -> logits" in said.out
    for size, message in (("32,48", "--size takes one size"), ("x", "--size takes whole numbers"), ("30", "multiple")):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--size", size])
        assert stop.value.code == 2 and message in capsys.readouterr().err


def test_the_model_stays_as_it_is(tmp_path):
    model = tiny("string").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    zoo.export(model, tmp_path / "a.pt2")
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    encoding = model.encoder.blocks[0].attn.encoding
    basis = encoding.basis(torch.float32)
    with torch.no_grad():
        encoding.skew.add_(1.0)
    assert not torch.equal(encoding.basis(torch.float32), basis)  # Not what export computed once.


def test_a_fixed_size_is_refused_elsewhere(tmp_path):
    path = tmp_path / "fixed.onnx"
    report = zoo.export(model := tiny(), path, size=(40, 24))
    assert report.inputs == {"images": "batch, 3, height 40, width 24"}
    opened = session(path)
    assert opened.get_inputs()[0].shape == ["batch", 3, 40, 24]
    assert difference(model, opened, noise(5, 3, 40, 24)) < TOLERANCE
    with pytest.raises(Exception, match="invalid dimensions"):
        run(opened, noise(1, 3, 24, 40))
    with pytest.raises(DataError, match=r"takes images of \(batch, 3, 40, 24\), got \(1, 3, 48, 24\)"):
        zoo.load(str(path))(noise(1, 3, 48, 24))


def detector(**options):
    options = {**TINY_DETECTOR, "num_classes": 2, "max_detections": 50, **options}
    model = zoo.load("pape-vit-det-n-bccd", pretrained=False, input_size=64, **options)
    randomise(model)
    for tower in model.head.one2one_cv3:  # Scores that differ from cell to cell.
        torch.nn.init.normal_(tower[-1].weight, std=2.0, generator=torch.Generator().manual_seed(0))
        torch.nn.init.zeros_(tower[-1].bias)
    return model.eval()


@pytest.mark.parametrize("pyramid", ["simple", pytest.param("vitdet", marks=pytest.mark.slow)])
def test_detector_at_sizes_never_traced(pyramid, tmp_path):
    model, path = detector(pyramid=pyramid), tmp_path / "detector.onnx"
    zoo.export(model, path)
    opened, exported = session(path), zoo.load(str(path))
    assert [(one.name, one.shape) for one in opened.get_outputs()] == [("detections", ["batch", 50, 6])]
    for shape in [(1, 3, 40, 56), (3, 3, 72, 24), (1, 3, 136, 200), (1, 3, 16, 16)]:
        images = noise(*shape)
        with torch.inference_mode():
            expected = model(images)
        found = torch.from_numpy(run(opened, images))
        assert (found[..., 4] - expected.tensor[..., 4]).abs().max() < TOLERANCE
        scores = expected.tensor[..., 4]
        # Where no neighbour has the same score the order is certain.
        apart = scores.diff(dim=1).abs() > TOLERANCE
        sure = torch.nn.functional.pad(apart, (1, 0), value=True) & torch.nn.functional.pad(apart, (0, 1), value=False)
        assert sure.sum() > 5
        scale = max(shape[2:])
        assert ((found - expected.tensor)[..., :4][sure].abs() / scale).max() < TOLERANCE
        assert torch.equal(found[..., 5][sure], expected.tensor[..., 5][sure])
        own = exported(images)
        assert torch.equal(own.tensor, found) and own.input_size == expected.input_size
        assert own.data_config == expected.data_config
    few = run(opened, noise(1, 3, 16, 16))
    assert few.shape == (1, 50, 6)
    if pyramid == "simple":
        assert not few[0, 42:].any()  # Two classes in each of 21 cells; the rest is padding.


def test_video_at_sizes_rates_and_lengths_never_traced(tmp_path):
    model, path = video_model(depth=1, time_unit_s=0.125, class_token_position="origin"), tmp_path / "video.onnx"
    zoo.export(model, path)
    opened, exported = session(path), zoo.load(str(path))
    assert [(one.name, one.shape) for one in opened.get_inputs()] == [
        ("clips", ["batch", 3, "frames", "height", "width"]),
        ("times_s", ["batch", "frames"]),
    ]
    for batch, frames, height, width, rate in [(1, 10, 8, 12, 8.0), (3, 4, 20, 8, 4.0), (1, 22, 16, 28, 30.0)]:
        inputs = clips(batch, frames, height, width)
        times = 7.5 + torch.arange(frames, dtype=torch.float64).expand(batch, -1) / rate
        with torch.inference_mode():
            expected = model(inputs, None, times)
        assert np.abs(run(opened, inputs, times.contiguous()) - expected.numpy()).max() < TOLERANCE
        assert torch.allclose(exported(inputs, None, times), expected, atol=TOLERANCE)
        other = model(inputs, None, times * 4).detach()
        assert (other - expected).abs().max() > 10 * TOLERANCE  # Time is not baked in.
    inputs, lengths = clips(3), torch.tensor([5, 2, 5])
    inputs[1, :, 4:] = float("nan")
    with torch.inference_mode():
        assert torch.allclose(exported(inputs, lengths), model(inputs, lengths), atol=TOLERANCE)
    with pytest.raises(DataError, match="lengths"):
        exported(inputs, torch.tensor([5, 0, 5]))


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "pool"), [("divided", "token"), ("divided", "mean"), ("factorised", "token")])
@pytest.mark.parametrize("unit", [None, 0.125])
def test_video_variants(attention, pool, unit, tmp_path):
    changes = {"class_token_position": None} if pool == "mean" else {}
    model = video_model(attention=attention, pool=pool, time_unit_s=unit, **changes)
    zoo.export(model, tmp_path / "video.onnx")
    exported = zoo.load(str(tmp_path / "video.onnx"))
    for shape in [(1, 10, 8, 12), (3, 14, 20, 8)]:
        with torch.inference_mode():
            assert torch.allclose(exported(clips(*shape)), model(clips(*shape)), atol=TOLERANCE)


def test_float16_computes_positions_in_float32(tmp_path):
    model, path = tiny(), tmp_path / "half.onnx"
    assert zoo.export(model, path, dtype="float16").weights == "float16"
    opened = session(path)
    assert opened.get_inputs()[0].type == opened.get_outputs()[0].type == "tensor(float)"
    for shape in [
        (1, 3, 40, 56),
        (3, 3, 8, 88 * 8),
        (1, 3, 160, 96),
    ]:  # Of plain float16, coordinates of 88 would not do.
        assert difference(model, opened, noise(*shape)) < 5e-3
    with pytest.raises(Exception, match="out of data bounds"):  # Less is safe to fold than in float32.
        run(opened, noise(1, 3, 8, 130 * 8))


def test_int8_is_of_linear_layers_alone(classifier, tmp_path):
    import onnx

    model, whole, _ = classifier
    path = tmp_path / "int8.onnx"
    report = zoo.export(model, path, int8=True)
    assert report.weights == "int8" and 0 < report.difference < 0.05
    proto = onnx.load(path)
    assert sum(node.op_type == "MatMulInteger" for node in proto.graph.node) == 4  # qkv, proj, fc1, fc2; one block.
    assert zoo.load(str(path)).load_report.dtype == "int8"
    assert 0 < difference(model, session(path), noise(2, 3, 64, 48)) < 0.1
    assert difference(model, session(whole), noise(2, 3, 64, 48)) < TOLERANCE


def test_torch_export(tmp_path):
    model, path = tiny(), tmp_path / "model.pt2"
    report = zoo.export(model, path)
    assert report.format == "torch.export" and report.opset is None
    with pytest.raises(ConfigError, match=f"trusted:{path}"):
        zoo.load(str(path))
    exported = zoo.load(f"trusted:{path}")
    for shape in SHAPES[:4]:
        with torch.inference_mode():
            assert (exported(noise(*shape)) - model(noise(*shape))).abs().max() < TOLERANCE
    module = torch.export.load(path).module()  # Without anything of ours.
    with pytest.raises(Exception, match="[Gg]uard|divisible|multiple"):
        module(noise(1, 3, 44, 56))
    with pytest.raises(DataError, match="2056"):
        exported(noise(1, 3, 16, 257 * 8))


@pytest.mark.slow
def test_torch_export_in_int8(tmp_path):
    pytest.importorskip("torchao")
    model = tiny()
    report = zoo.export(model, tmp_path / "int8.pt2", int8=True)
    assert report.weights == "int8" and 0 < report.difference < 0.05
    exported = zoo.load(f"trusted:{tmp_path / 'int8.pt2'}")
    with torch.inference_mode():
        assert 0 < (exported(noise(3, 3, 64, 48)) - model(noise(3, 3, 64, 48))).abs().max() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["pape-vit-t-imagenette", "pape-vit-n-imagenette", "pape-vit-det-n-bccd", "pape-video-vit-n-imagenette-motion"],
)
def test_embedded_models(name, tmp_path):
    report = zoo.export(name, tmp_path / "model.onnx")
    assert report.difference < TOLERANCE  # At a size above the trained one, and at a smaller one.
    model, exported = zoo.load(name), zoo.load(str(tmp_path / "model.onnx"))
    if report.output == "logits":
        shape = (2, 3, 8, 96, 160) if "video" in name else (2, 3, 448, 160)
        with torch.inference_mode():
            expected, found = model(noise(*shape)), exported(noise(*shape))
        assert (found - expected).abs().max() < TOLERANCE


@pytest.mark.slow
def test_int8_loses_at_most_a_point_on_imagenette(shared, tmp_path, monkeypatch):
    from modalities.image.data import pictures
    from zoo.evaluate import evaluate

    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    packed = pictures(shared / "data" / "imagenette", "validation", skip_bad=False, quiet=True)
    rows = range(0, len(packed), 3)
    chosen, labels = [packed[i] for i in rows], packed.labels[::3]
    zoo.export("pape-vit-t-imagenette", tmp_path / "int8.onnx", int8=True)
    models = (zoo.load("pape-vit-t-imagenette"), zoo.load(str(tmp_path / "int8.onnx")))
    whole, int8 = (evaluate(model, chosen, labels, [112])[0].top1 for model in models)
    assert int8 > whole - 1
