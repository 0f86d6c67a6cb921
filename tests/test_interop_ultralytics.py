"""Detectors in ultralytics' `YOLO` object, where it is installed (8.4.190; AGPL-3.0, so in no other test or extra)."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, TINY_CONFIG
from PIL import Image
from saved_models import randomise

import zoo
from modalities.image.detector import build
from modalities.image.transforms import preprocess
from zoo.detection.loss import DetectionLoss
from zoo.detection.targets import Targets
from zoo.errors import ConfigError, WeightsError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

COLOURS = {"red": (250, 60, 60), "blue": (60, 60, 250)}
QUIET = {"plots": False, "verbose": False, "workers": 0}


@pytest.fixture(autouse=True, scope="module")
def _installed():
    pytest.importorskip("polars", reason="ultralytics needs it to train")
    if not __import__("importlib.util").util.find_spec("ultralytics"):
        pytest.skip("ultralytics (AGPL-3.0) is not installed: pip install 'pape-zoo[interop]'")


def make(seed=0, **model):
    config = copy.deepcopy(TINY_CONFIG) | {"task": "detection", "architecture": "vit-det", "labels": list(COLOURS)}
    config["model"] |= {"pyramid_dim": 16, "class_width": 16, "num_classes": 2, "depth": 1, **model}
    config["data"] |= {"resize": "letterbox", "input_size": [3, 64, 64], "std": [0.5, 0.25, 0.5]}
    torch.manual_seed(seed)
    detector = build(config).eval()
    randomise(detector, seed)
    with torch.no_grad():  # Scores around 0.3, and boxes of two cells, so that they lie in the picture.
        for boxes, classes in zip(detector.head.one2one_cv2, detector.head.one2one_cv3, strict=True):
            boxes[-1].bias.view(4, 16)[:, 1] += 8
            classes[-1].weight.mul_(10)
            classes[-1].bias.fill_(-1)
    return detector


@pytest.fixture
def detector():
    return make()


def own_input(pictures, model):
    """Pictures from 0 to 1 as our model takes them."""
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (model.data_config.mean, model.data_config.std))
    return (pictures - mean) / std


def write_data(folder, names=tuple(COLOURS), count=12, rows=48, label=None):
    """Squares of two colours; `label(picture)` gives (class, x1, y1, x2, y2) instead of those of the square."""
    generator = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    for index in range(count):
        picture = np.full((rows, 64, 3), 90, np.uint8)
        k, x, y = index % 2, *generator.integers(0, (40, 24))
        picture[y : y + 24, x : x + 24] = list(COLOURS.values())[k]
        Image.fromarray(picture).save(folder / "images" / f"{index}.png")
        k, *box = (k, x, y, x + 24, y + 24) if label is None else label(picture)
        x1, y1, x2, y2 = (value / side for value, side in zip(box, (64, rows, 64, rows), strict=True))
        row = f"{int(k)} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n"
        (folder / "labels" / f"{index}.txt").write_text(row)
    description = {"path": str(folder), "train": "images", "val": "images", "names": dict(enumerate(names))}
    (folder / "data.yaml").write_text(yaml.safe_dump(description))
    return str(folder / "data.yaml")


def settings(tmp_path, **more):
    fixed = {"mosaic": 0, "warmup_epochs": 0, "optimizer": "AdamW", "lr0": 0.003, "nbs": 2, "batch": 4, "imgsz": 64}
    return QUIET | fixed | {"epochs": 1, "project": str(tmp_path / "runs"), **more}


# ---- predictions


@pytest.mark.parametrize("pyramid", ["simple", "vitdet"])
def test_network_gives_our_detections_exactly(pyramid):
    detector = make(pyramid=pyramid)
    yolo = zoo.to_ultralytics(detector)
    pictures = torch.rand(2, 3, 64, 96)
    found, raw = yolo.model(pictures)
    assert torch.equal(found, detector.detect(own_input(pictures, detector))) and found.shape == (2, 100, 6)
    assert set(raw) == {"one2one", "one2many"}
    yolo.model.train()
    training = yolo.model(pictures)
    assert detector.training and training["one2many"]["boxes"].shape == (2, 64, training["one2one"]["scores"].shape[2])


def test_predict_on_a_tensor_equals_ours(detector):
    picture = torch.rand(1, 3, 64, 64)
    result = zoo.to_ultralytics(detector).predict(picture, conf=0.01, verbose=False)[0]
    expected = detector.detect(own_input(picture, detector))[0]
    expected = expected[expected[:, 4] > 0.01]
    expected[:, :4] = expected[:, :4].clamp(0, 64)
    assert len(expected) and result.names == {0: "red", 1: "blue"}
    torch.testing.assert_close(result.boxes.data, expected, rtol=1e-5, atol=1e-4)


def test_predict_on_a_file_equals_ours_in_its_own_pixels(detector, tmp_path):
    """A picture that needs a border and no resizing, which OpenCV does in its own way."""
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    result = zoo.to_ultralytics(detector).predict(str(tmp_path / "a.png"), conf=0.01, verbose=False)[0]
    inputs = preprocess(pixels, detector.data_config).unsqueeze(0)
    expected = detector(inputs).tensor[0]
    expected = expected[expected[:, 4] > 0.01].detach()
    expected[:, 1:4:2] -= 8
    expected[:, :4:2] = expected[:, :4:2].clamp(0, 64)
    expected[:, 1:4:2] = expected[:, 1:4:2].clamp(0, 48)
    torch.testing.assert_close(result.boxes.data, expected, rtol=1e-5, atol=1e-3)


def test_model_that_squashes_gets_squashed_pictures(tmp_path):
    detector = make()
    detector.data_config = detector.data_config.replace(resize="squash")
    yolo = zoo.to_ultralytics(detector)
    seen = []
    yolo.model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    Image.fromarray(np.full((32, 64, 3), 200, np.uint8)).save(tmp_path / "a.png")
    yolo.predict(str(tmp_path / "a.png"), conf=0.01, verbose=False)
    assert yolo.predictor.scale_fill and yolo.predictor.preprocess([np.full((32, 64, 3), 200, np.uint8)]).min() > 0.7


def test_one2many_branch_with_suppression_is_there_on_request(detector):
    yolo = zoo.to_ultralytics(detector)
    picture = torch.rand(1, 3, 64, 64)
    many = yolo.predict(picture, conf=0.001, iou=0.5, nms=None, verbose=False)[0].boxes
    one = yolo.predict(picture, conf=0.001, verbose=False)[0].boxes
    assert not yolo.model.training and len(many) > 0 and not torch.equal(many.conf[:1], one.conf[:1])


def test_grid_holds_whole_patches():
    assert zoo.to_ultralytics(make(patch_size=14)).model.stride.max() == 224
    assert zoo.to_ultralytics(make(patch_size=16)).model.stride.tolist() == [8, 16, 32]


# ---- copies


def test_copies_pickles_half_precision_and_fuse(detector):
    yolo = zoo.to_ultralytics(detector)
    pictures = torch.rand(1, 3, 64, 64)
    expected = yolo.model(pictures)[0]
    for network in (copy.deepcopy(yolo.model), pickle.loads(pickle.dumps(yolo.model))):
        assert torch.equal(network(pictures)[0], expected)
        inner = network.zoo_model
        assert inner is not detector and inner.head is network.model[1].towers and inner.embed is network.model[0].embed
        half = network.half()(pictures.half())[0]
        torch.testing.assert_close(half[:, :5, 4], expected[:, :5, 4], rtol=2e-2, atol=2e-3)
    yolo.fuse(verbose=False)
    assert torch.equal(yolo.model(pictures)[0], expected) and yolo.model.is_fused()
    assert set(detector.forward_raw(own_input(pictures, detector))) == {"one2one", "one2many"}
    assert yolo.to("cpu").zoo_model is detector


def test_save_and_load_of_a_file(detector, tmp_path):
    yolo = zoo.to_ultralytics(detector)
    yolo.save(tmp_path / "a.pt")
    loaded = zoo.to_ultralytics(tmp_path / "a.pt")
    assert loaded.names == yolo.names and loaded.overrides["imgsz"] == 64
    own = zoo.from_ultralytics(tmp_path / "a.pt")
    assert own.config == detector.config and not own.training
    for key, value in own.state_dict().items():
        assert value.dtype == torch.float32 and torch.equal(value, detector.state_dict()[key].half().float()), key
    from ultralytics import YOLO

    assert len(YOLO(tmp_path / "a.pt").predict(torch.rand(1, 3, 64, 64), conf=0.001, nms=False, verbose=False)) == 1


def test_bad_files_are_refused(tmp_path):
    (tmp_path / "bad.pt").write_bytes(b"no pickle")
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "other.pt")
    for name, message in (("bad", "cannot be read"), ("other", "Linear"), ("absent", "no .pt file")):
        with pytest.raises(WeightsError, match=message):
            zoo.to_ultralytics(tmp_path / f"{name}.pt")


def test_export_to_torchscript(detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = zoo.to_ultralytics(detector).export(format="torchscript", imgsz=64)
    pictures = torch.rand(1, 3, 64, 64)
    found, expected = torch.jit.load(path)(pictures), detector.detect(own_input(pictures, detector))
    torch.testing.assert_close(found[:, :100, 4], expected[..., 4], rtol=1e-4, atol=1e-5)


# ---- validation and training


def test_val_finds_labels_that_the_model_itself_gives(detector, tmp_path):
    def best(picture):
        inputs = preprocess(picture, detector.data_config).unsqueeze(0)
        row = detector(inputs).for_image(0, (64, 64))[0].tolist()
        return int(row[5]), *row[:4]

    def other(picture):
        k, *box = best(picture)
        return 1 - k, *box

    yolo = zoo.to_ultralytics(detector)
    arguments = {**QUIET, "max_det": 1, "batch": 4, "project": str(tmp_path / "runs")}
    right = yolo.val(data=write_data(tmp_path / "right", rows=64, label=best), **arguments)
    wrong = yolo.val(data=write_data(tmp_path / "wrong", rows=64, label=other), **arguments)
    assert right.box.map50 > 0.9 and wrong.box.map50 < 0.1
    with pytest.raises(ConfigError, match="data="):
        yolo.val()


def test_their_loss_is_ours(detector, tmp_path):
    """Apart from the 1e-9 that it adds to the t of the best cell (see test_detection_loss)."""
    yolo = zoo.to_ultralytics(detector)
    yolo.model.train()
    pictures = torch.rand(2, 3, 64, 64)
    boxes = [torch.tensor([[4.0, 6, 40, 50]]), torch.tensor([[10.0, 8, 60, 44], [2, 2, 30, 40]])]
    classes = [torch.tensor([1]), torch.tensor([0, 1])]
    corners = torch.cat(boxes) / 64
    batch = {
        "img": pictures,
        "batch_idx": torch.tensor([0.0, 1, 1]),
        "cls": torch.cat(classes).float(),
        "bboxes": torch.cat([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], dim=1),
    }
    from ultralytics.utils import DEFAULT_CFG

    yolo.model.args = DEFAULT_CFG
    total, parts = yolo.model(batch)
    own = DetectionLoss(detector.strides)(
        detector(own_input(pictures, detector)), Targets.collate(list(zip(boxes, classes, strict=True)), 2)
    )
    assert float(total.sum()) / 2 == pytest.approx(float(own["loss"]), rel=2e-3) and set(parts) >= {"box_loss"}


def fixed_loss(model, folder):
    """Our loss on the data set, in eval mode."""
    losses = []
    with torch.no_grad():
        for path in sorted((folder / "images").glob("*.png")):
            k, x, y, w, h = map(float, (folder / "labels" / f"{path.stem}.txt").read_text().split())
            box = torch.tensor([[(x - w / 2) * 64, (y - h / 2) * 48, (x + w / 2) * 64, (y + h / 2) * 48]])
            box[:, 1::2] += 8
            inputs = preprocess(np.array(Image.open(path)), model.data_config).unsqueeze(0)
            targets = Targets.collate([(box, torch.tensor([int(k)]))], 2)
            losses.append(float(DetectionLoss(model.strides)(model.forward_raw(inputs), targets)["loss"]))
    return sum(losses) / len(losses)


def test_train_lowers_the_loss_of_our_model(detector, tmp_path):
    yolo = zoo.to_ultralytics(detector)
    data = write_data(tmp_path / "data", count=48)
    before, weights = fixed_loss(detector, tmp_path / "data"), copy.deepcopy(detector.state_dict())
    yolo.train(data=data, **settings(tmp_path, batch=2))
    assert yolo.zoo_model is detector and fixed_loss(detector, tmp_path / "data") < 0.9 * before
    changed = {key for key, value in detector.state_dict().items() if not torch.equal(value, weights[key])}
    assert {"embed.proj.weight", "encoder.blocks.0.attn.qkv.weight", "head.one2one_cv3.0.2.weight"} <= changed
    best = zoo.from_ultralytics(yolo.trainer.best)
    assert all(torch.equal(value, detector.state_dict()[key]) for key, value in best.state_dict().items())
    assert best.config["labels"] == detector.config["labels"] == list(COLOURS)
    zoo.save(zoo.from_ultralytics(yolo), tmp_path / "saved")
    pictures = torch.rand(1, 3, 64, 64)
    again = zoo.load(f"local-dir:{tmp_path / 'saved'}").detect(own_input(pictures, detector))
    assert torch.equal(again, yolo.model(pictures)[0])


class Interrupted(Exception):
    pass


def test_interrupted_training_leaves_the_model_and_resumes_from_its_file(detector, tmp_path):
    def stop(trainer):
        if trainer.epoch == 1:
            raise Interrupted

    yolo = zoo.to_ultralytics(detector)
    weights = copy.deepcopy(detector.state_dict())
    data = write_data(tmp_path / "data", names=("Blue", "green", "red"))
    yolo.add_callback("on_train_epoch_start", stop)
    with pytest.raises(Interrupted):
        yolo.train(data=data, **settings(tmp_path, epochs=2, freeze=1))
    assert yolo.zoo_model is detector and detector.num_classes == 2
    assert all(torch.equal(value, weights[key]) for key, value in detector.state_dict().items())
    resumed = zoo.to_ultralytics(yolo.trainer.last)
    resumed.train(resume=True)
    assert resumed.trainer.start_epoch == 1 and resumed.trainer.epoch == 1
    trained = resumed.zoo_model
    assert trained.config["labels"] == ["Blue", "green", "red"] and trained.num_classes == 3
    kept = trained.state_dict()["encoder.blocks.0.attn.qkv.weight"]  # Frozen; the file is float16.
    assert torch.equal(kept, weights["encoder.blocks.0.attn.qkv.weight"].half().float())


def test_class_rows_go_by_name(detector):
    from zoo.interop.ultralytics import ZooNetwork

    network = ZooNetwork(make(seed=1))
    network.rename({0: "green", 1: "Blue", 2: "red"})
    network.load(ZooNetwork(detector), verbose=False)
    for branch in ("cv3", "one2one_cv3"):
        old, new = (getattr(model.head, branch)[0][2] for model in (detector, network.zoo_model))
        assert torch.equal(new.weight[1:], old.weight.flip(0)) and torch.equal(new.bias[1:], old.bias.flip(0))
        assert not new.weight[0].any()
    with pytest.raises(WeightsError, match="most weights of the encoder"):
        network.load(ZooNetwork(make(dim=64, mlp_dim=128, head_dim=32)))
    with pytest.raises(WeightsError, match="Linear"):
        network.load(torch.nn.Linear(2, 2))


def test_train_needs_data_and_the_channels_of_the_model(detector, tmp_path):
    yolo = zoo.to_ultralytics(detector)
    with pytest.raises(ConfigError, match="data="):
        yolo.train(epochs=1)
    data = write_data(tmp_path / "data")
    file = tmp_path / "data" / "data.yaml"
    file.write_text(file.read_text() + "channels: 1\n")
    with pytest.raises(ConfigError, match="3 channels"):
        yolo.train(data=data, **settings(tmp_path))


# ---- network and files


def test_no_network_and_nothing_in_the_home_folder(tmp_path):
    """In a process of its own, with plots, without any settings, and with every connection an error that is kept."""
    code = """
        import socket, sys, tempfile
        from pathlib import Path
        asked = []
        def refuse(*arguments, **keywords):
            asked.append(arguments)
            raise OSError("no network here")
        socket.getaddrinfo = socket.create_connection = socket.socket.connect = socket.socket.connect_ex = refuse
        sys.path.insert(0, "tests")
        import test_interop_ultralytics as t, zoo, torch
        del sys.modules["pytest"]  # Else it takes itself to be tested, and sends nothing.
        folder = Path(sys.argv[1])
        yolo = zoo.to_ultralytics(t.make())
        data = t.write_data(folder / "data")
        yolo.predict(torch.rand(1, 3, 64, 64), conf=0.01)
        yolo.predict(str(folder / "data" / "images" / "0.png"), save=True, project=str(folder / "p"), conf=0.01)
        yolo.train(data=data, **t.settings(folder, plots=True))
        yolo.val(data=data, project=str(folder / "runs"))
        from ultralytics.utils.events import events
        assert not events.events and not events.enabled
        assert not asked, asked
    """
    home = tmp_path / "home"
    home.mkdir()
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("YOLO_", "XDG_", "PYTEST"))}
    environment = keep | {"HOME": str(home), "MPLCONFIGDIR": str(tmp_path / "mpl"), "TMPDIR": str(tmp_path / "tmp")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list(home.rglob("*")) and not list((tmp_path / "tmp").glob("pape-zoo-*"))
