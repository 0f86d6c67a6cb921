import itertools
import json
import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

import zoo
from modalities.image.model import build
from modalities.image.transforms import preprocess
from zoo.errors import ConfigError, DataError, MissingDependencyError, WeightsError
from zoo.predict import Predictor
from zoo.results import ClassificationResults, free_path
from zoo.transformer import Encoder


def randomised(config):
    """A new model has a zero head, which would give every class the same score."""
    torch.manual_seed(0)
    model = build(config)
    torch.nn.init.normal_(model.head.weight, std=0.5)
    return model.eval()


@pytest.fixture
def model(tiny_config):
    return randomised(tiny_config)


def picture(seed: int, height: int = 40, width: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pictures"
    root.mkdir()
    for index in range(5):
        PIL.Image.fromarray(picture(index, 30 + 7 * index, 60 - 5 * index)).save(root / f"{index}.png")
    return root


def spoil(folder: Path) -> None:
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:1200])
    (folder / "3.png").write_bytes(b"words")


# --- one picture -------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_model(model):
    array = picture(0)
    logits = model(preprocess(array, model.data_config)[None])[0]
    order = logits.argsort(descending=True)
    result = zoo.predictor(model)(array)
    assert isinstance(result, ClassificationResults)
    assert result.indices == tuple(order.tolist())
    assert result.labels == tuple(["circle", "square", "triangle"][index] for index in order)
    assert result.scores == pytest.approx(logits.softmax(0)[order].tolist(), abs=1e-6)
    assert result.label == result.labels[0] and result.score == result.scores[0]
    assert result.size == (40, 50) and result.path is None and result.name == "array"


def test_every_kind_of_source_gives_the_same(model, tmp_path):
    array = picture(1)
    path = tmp_path / "a.png"
    PIL.Image.fromarray(array).save(path)
    predict = zoo.predictor(model)
    expected = predict(array).scores
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for source in (path, str(path), path.read_bytes(), PIL.Image.open(path), array / 255, tensor, zoo.read(path).rgb):
        assert predict(source).scores == expected
    assert predict(path).path == path and predict(str(path)).name == str(path)


def test_from_a_saved_folder(model, tmp_path):
    zoo.save(model, tmp_path / "tiny")
    predict = zoo.predictor(f"local-dir:{tmp_path / 'tiny'}", top_k=2, local_files_only=True)
    assert predict(picture(2)).scores == zoo.predictor(model, top_k=2)(picture(2)).scores
    adapted = zoo.predictor(f"local-dir:{tmp_path / 'tiny'}", num_classes=7)(picture(2))
    assert adapted.labels == ("0", "1", "2", "3", "4") and adapted.scores == pytest.approx((1 / 7,) * 5)


def test_top_k(model):
    assert len(zoo.predictor(model, top_k=1)(picture(0)).labels) == 1
    assert len(zoo.predictor(model, top_k=1000)(picture(0)).labels) == 3
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="top_k"):
            zoo.predictor(model, top_k=bad)


def test_model_without_label_names(tiny_config):
    result = zoo.predictor(randomised({**tiny_config, "labels": None}))(picture(0))
    assert result.labels == tuple(map(str, result.indices))


@pytest.mark.parametrize("size", [8, 64, 104, (24, 80)])
def test_any_size(model, size):
    array = picture(3)
    result = zoo.predictor(model, size=size)(array)
    logits = model(preprocess(array, model.data_config, size)[None])[0]
    assert result.scores == pytest.approx(logits.softmax(0).sort(descending=True).values.tolist(), abs=1e-6)
    assert model.data_config.input_size == (3, 32, 32)


@pytest.mark.parametrize(
    ("size", "word"),
    [
        (100, "use 96 or 104"),
        (5, "use 8$"),
        ((32, 33), "use 32 or 40"),
        (0, "out of range"),
        (-8, "out of range"),
        ("9", "a side in pixels"),
    ],
)
def test_bad_size(model, size, word):
    with pytest.raises(ConfigError, match=word):
        zoo.predictor(model, size=size)


def test_padding_models_take_every_size(tiny_config):
    tiny_config["model"]["size_policy"] = "pad"
    assert sum(zoo.predictor(randomised(tiny_config), size=37)(picture(0)).scores) == pytest.approx(1)


def test_grayscale_model(tiny_config):
    tiny_config["model"]["in_chans"] = 1
    tiny_config["data"] |= {"input_size": [1, 32, 32], "mean": [0.5], "std": [0.5]}
    predict = zoo.predictor(randomised(tiny_config))
    array = picture(0)
    gray = np.asarray(PIL.Image.fromarray(array).convert("L"))
    assert predict(array).scores == pytest.approx(predict(gray).scores, abs=2e-3)


def test_models_that_take_no_pictures(tiny_config):
    tiny_config["model"]["in_chans"] = 5
    tiny_config["data"] |= {"input_size": [5, 32, 32], "mean": [0.5] * 5, "std": [0.5] * 5}
    with pytest.raises(ConfigError, match="5 channels"):
        zoo.predictor(build(tiny_config))
    with pytest.raises(ConfigError, match="Linear is not a model of pape-zoo"):
        zoo.predictor(torch.nn.Linear(3, 3))


def test_model_without_a_head(model):
    model.reset_classifier(0)
    with pytest.raises(ConfigError, match="no classes"):
        zoo.predictor(model)


def test_other_tasks_are_refused(model):
    model.config = {**model.config, "task": "segmentation"}
    with pytest.raises(ConfigError, match="no predictor for image segmentation"):
        zoo.predictor(model)


def test_device_and_dtype(model):
    predict = zoo.predictor(model, device="cpu", dtype="float64")
    assert next(model.parameters()).dtype == torch.float64 and sum(predict(picture(0)).scores) == pytest.approx(1)
    for dtype in ("int64", "cat", 3):
        with pytest.raises(ConfigError, match="dtype"):
            zoo.predictor(model, dtype=dtype)
    with pytest.raises(ConfigError, match="device 'warp:9' cannot be used"):
        zoo.predictor(model, device="warp:9")
    with pytest.raises(ConfigError, match="no options for loading: num_classes"):
        zoo.predictor(model, num_classes=3)


def test_half_precision_is_close(model):
    expected = zoo.predictor(model)(picture(0)).scores
    assert zoo.predictor(model, dtype="bfloat16")(picture(0)).scores == pytest.approx(expected, abs=0.05)


def test_training_mode_does_not_leak_in(tiny_config):
    tiny_config["model"]["drop_path"] = 0.9
    model = randomised(tiny_config)
    predict = zoo.predictor(model)
    expected = predict(picture(0)).scores
    model.train()
    assert predict(picture(0)).scores == expected
    assert predict(picture(0)).scores and not any(p.grad is not None for p in model.parameters())


def test_damaged_weights_are_no_answer(model):
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    with pytest.raises(WeightsError, match="array: the model's scores are not finite"):
        zoo.predictor(model)(picture(0))


def test_equal_scores_come_in_the_order_of_the_classes(tiny_config):
    assert zoo.predictor(build(tiny_config))(picture(0)).indices == (0, 1, 2)


# --- many pictures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 5, 32])
def test_batches_change_nothing(model, folder, batch_size):
    predict = zoo.predictor(model)
    results = predict(folder, batch_size=batch_size)
    assert [Path(result.name).name for result in results] == [f"{index}.png" for index in range(5)]
    for index, result in enumerate(results):
        single = predict(folder / f"{index}.png")
        assert result.indices == single.indices and result.scores == pytest.approx(single.scores, abs=1e-5)
        assert result.size == (30 + 7 * index, 60 - 5 * index)


def test_lists_mix_and_expand(model, folder):
    predict = zoo.predictor(model)
    results = predict([picture(0), f"{folder}/[12].png", folder / "4.png", PIL.Image.fromarray(picture(1))])
    assert [result.name.rpartition("/")[2] for result in results] == [
        "array (item 0)",
        "1.png",
        "2.png",
        "4.png",
        "PIL image (item 3)",
    ]
    assert [result.name for result in predict(iter([picture(0)]))] == ["array (item 0)"]
    assert predict([]) == []


def test_a_stream_holds_one_batch(model):
    taken = itertools.count()

    def endless():
        while True:
            next(taken)
            yield picture(0)

    stream = zoo.predictor(model)(endless(), batch_size=3, stream=True)
    for index in range(7):
        next(stream)
        assert next(taken) - index <= 3 * (index // 3 + 1)
    stream.close()


def test_a_stream_of_one(model):
    assert [len(result.labels) for result in zoo.predictor(model)(picture(0), stream=True)] == [3]


def test_results_hold_no_pixels(model, folder):
    result = zoo.predictor(model)(folder)[0]
    (folder / "0.png").unlink()
    with pytest.raises(DataError, match=r"0\.png: no such file"):
        result.plot()


def test_bad_files_raise_or_are_skipped(model, folder):
    spoil(folder)
    predict = zoo.predictor(model)
    with pytest.raises(DataError, match=r"1\.png: .*truncated"):
        predict(folder)
    results = predict([folder, "absent.png", f"{folder}/*.gif", np.full((4, 4), np.nan)], on_error="skip", batch_size=2)
    assert [Path(result.name).stem for result in results] == ["0", "2", "4"]
    assert [failure.name for failure in predict.failures] == [
        f"{folder}/1.png",
        f"{folder}/3.png",
        "absent.png",
        f"{folder}/*.gif",
        "array (item 3)",
    ]
    assert all(failure.name in str(failure.error) for failure in predict.failures)
    assert predict(folder / "0.png").label and predict.failures == []
    with pytest.raises(DataError):
        predict(folder / "3.png", on_error="skip")
    kept = predict(folder, on_error="skip", errors="keep")
    assert [result.truncated for result in kept] == [False, True, False, False] and len(predict.failures) == 1


def test_reader_options_pass_through(model):
    with pytest.raises(DataError, match="the limit is 10;"):
        zoo.predictor(model)(picture(0), max_pixels=10)


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"batch_size": 2.5}, {"errors": "drop"}, {"on_error": "ignore"}]
)
def test_bad_call_options(model, options):
    with pytest.raises(ConfigError):
        zoo.predictor(model)(picture(0), **options)


def test_one_forward_per_batch(model, folder, monkeypatch):
    sizes = []
    forward = Encoder.forward
    monkeypatch.setattr(Encoder, "forward", lambda self, x, *rest: sizes.append(x.shape[0]) or forward(self, x, *rest))
    Predictor(model)(folder, batch_size=2)
    assert sizes == [2, 2, 1]


# --- results -----------------------------------------------------------------------------------------------------


@pytest.fixture
def result(model, folder):
    return zoo.predictor(model)(folder / "0.png")


def test_to_dict_and_json(result, folder):
    values = json.loads(result.to_json())
    assert values == result.to_dict()
    assert values["source"] == values["path"] == str(folder / "0.png")
    assert (values["width"], values["height"], values["truncated"]) == (60, 30, False)
    assert values["predictions"][0] == {"index": result.indices[0], "label": result.label, "score": result.score}
    assert len(values["predictions"]) == 3


def test_to_pandas(result):
    pytest.importorskip("pandas")
    table = result.to_pandas()
    assert list(table.columns) == ["source", "rank", "index", "label", "score"]
    assert table["label"].tolist() == list(result.labels) and table["rank"].tolist() == [1, 2, 3]


def test_to_pandas_without_pandas(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[viz\]'"):
        result.to_pandas()


def test_text(result, folder):
    lines = str(result).splitlines()
    assert lines[0] == f"{folder}/0.png (60 x 30)"
    assert lines[1].split()[:3] == [f"{100 * result.score:.1f}", "%", result.label]


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (700, 500), (1500, 2500)])
def test_plot(model, shape):
    array = picture(0, *shape)
    sheet = zoo.predictor(model)(array).plot()
    assert sheet.mode == "RGB" and 320 <= sheet.width <= 1024 and sheet.height <= 1024 + 300
    panel = np.asarray(sheet)[-40:]
    assert (panel < 128).all(axis=2).any(), "no text below the picture"
    if shape == (700, 500):
        assert np.array_equal(np.asarray(sheet)[:700], array)


def test_plot_shortens_long_labels_and_takes_any_script(model):
    model.config = {**model.config, "labels": ["a very long name " * 40, "日本語 🦆 \n x", "é"]}
    assert zoo.predictor(model)(picture(0)).plot().width == 320


def test_save(result, tmp_path):
    path = result.save(tmp_path / "new" / "out.png")
    with PIL.Image.open(path) as saved:
        assert saved.size == result.plot().size
    assert PIL.Image.open(result.save(tmp_path / "out.jpg")).format == "JPEG"
    for bad in ("out", "out.txt", "out.exe"):
        with pytest.raises(DataError, match="no picture format"):
            result.save(tmp_path / bad)
        assert not (tmp_path / bad).exists()
    with pytest.raises(DataError, match="cannot be written"):
        result.save(path / "below.png")


def test_save_that_fails_leaves_nothing(result, tmp_path, file_size_limit):
    for name in ("out.xbm", "a\0b.png"):
        with pytest.raises(DataError, match="cannot be written"):
            result.save(tmp_path / name)
    with file_size_limit(500), pytest.raises(DataError, match="cannot be written"):
        result.save(tmp_path / "out.png")
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_results_made_by_hand_have_no_plot():
    made = ClassificationResults("x", None, (0,), ("a",), (1.0,), (2, 3))
    assert str(made).startswith("x (3 x 2)")
    with pytest.raises(DataError, match="no picture"):
        made.plot()


def test_free_path(tmp_path):
    names = {
        "a/cat.jpg": "cat.png",
        "https://host/x/cat.webp?size=3#top": "cat-2.png",
        "https://host/": "host.png",
        "array (item 3)": "array _item 3_.png",
        "..": "picture.png",
        "../../etc/pass:wd": "pass_wd.png",
        "x" * 300: "x" * 100 + ".png",
    }
    for name, expected in names.items():
        path = free_path(tmp_path, name)
        assert path == tmp_path / expected
        path.touch()
    (tmp_path / "link.png").symlink_to(tmp_path / "gone")
    assert free_path(tmp_path, "link.jpg").name == "link-2.png"
