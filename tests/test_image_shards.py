"""Pictures in tar shards: made, found, indexed, ordered, and trained on."""

from __future__ import annotations

import functools
import http.server
import io
import tarfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_toys import SIZE, TINY, stop_after, tiny_settings, toy_picture, write_toys

import zoo
from modalities.image import shard_files
from modalities.image.make_shards import make_shards
from modalities.image.shard_files import UnreachableShardError
from modalities.image.shard_task import ShardedClassification, ShardOrder, random_crop
from modalities.image.shards import open_shards
from modalities.image.sources import open_source
from zoo.errors import ConfigError, DataError
from zoo.evaluate import evaluate_data
from zoo.training.loop import METRICS, RECORD, train
from zoo.training.metrics import read_metrics
from zoo.training.recipe import load_recipe, recipe_from_dict


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def shards(data: Path, tmp_path: Path) -> Path:
    """32 training pictures in four shards, 12 to validate in two."""
    assert make_shards(data, tmp_path / "shards", samples=8) == {"train": (4, 32), "validation": (2, 12)}
    return tmp_path / "shards"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo-cache"))


def settings(shards: object, output: Path, **changes: Any) -> dict[str, Any]:
    return tiny_settings(Path("x"), output, task="image-classification-shards", window=2, workers=2, **changes) | {
        "data": str(shards)
    }


def cached(folder: Path) -> set[str]:
    """The names of what has been fetched."""
    names = {path.name.partition("-")[2] for path in (folder / "zoo-cache" / "shards").iterdir()}
    return {name for name in names if not name.endswith(".lock")}


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


# Making and reading


def test_shards_hold_the_pictures_of_their_source(data: Path, shards: Path, tmp_path: Path) -> None:
    found = open_shards(str(shards), "train")
    assert len(found) == 32 and found.class_names == ["dark", "bright"] and found.skipped == 0
    expected = sorted((item.read(), item.label) for item in open_source(data, "train"))
    assert sorted((found.read(i), int(found.labels[i])) for i in range(32)) == expected
    assert len(open_shards(str(shards), "validation")) == 12
    # The same bytes again; other ones by another seed; the same without an index, and by a pattern.
    make_shards(data, tmp_path / "again", ["train"], samples=8)
    make_shards(data, tmp_path / "other", ["train"], samples=8, seed=1)
    first = (shards / "train-000000.tar").read_bytes()
    assert (tmp_path / "again" / "train-000000.tar").read_bytes() == first
    assert (tmp_path / "other" / "train-000000.tar").read_bytes() != first
    (shards / "train-index.json").unlink()
    for _ in range(2):  # The second time from the cache.
        bare = open_shards(str(shards / "train-{000000..000003}.tar"), "train")
        assert bare.sha256 == found.sha256 and bare.class_names is None and bare.num_classes == 2
        assert [bare.read(i) for i in range(32)] == [found.read(i) for i in range(32)]


def test_class_folders_become_shards(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / "data" / "train" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(toy_picture(number % 2, number))
    (tmp_path / "data" / "train" / "cat" / "bad.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(DataError, match=r"bad\.png"):
        make_shards(tmp_path / "data", tmp_path / "out", ["train"], samples=4)
    assert not (tmp_path / "out").exists()
    with pytest.warns(UserWarning, match="left out 1 damaged"):
        made = make_shards(tmp_path / "data", tmp_path / "out", ["train"], samples=4, skip_bad=True)
    assert made == {"train": (2, 6)}
    found = open_shards(str(tmp_path / "out"), "train")
    assert found.class_names == ["cat", "dog"] and sorted(found.labels.tolist()) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("cut", ["in a picture", "between samples", "in the middle"])
def test_damaged_shards_are_refused_or_counted(shards: Path, indexed: bool, cut: str) -> None:
    whole, path = open_shards(str(shards), "train"), shards / "train-000002.tar"
    content = bytearray(path.read_bytes())
    kept = whole.offsets[whole.shard == 2]
    if cut == "in the middle":
        content[kept[4] - 512 : kept[4]] = bytes(range(256)) * 2  # The header of the fifth picture.
        path.write_bytes(content)
    else:
        path.write_bytes(content[: kept[5] + 10 if cut == "in a picture" else kept[5] - 512])
    if indexed and cut == "in the middle":
        return  # Pictures can all be read; the header is not looked at.
    if not indexed:
        (shards / "train-index.json").unlink()
    with pytest.raises(DataError, match=r"train-000002\.tar: .*(truncated|damaged).*use skip_bad"):
        open_shards(str(shards), "train")
    with pytest.warns(UserWarning, match=r"left out \d damaged samples; 1 shards end early"):
        found = open_shards(str(shards), "train", skip_bad=True)
    assert (found.shard == 2).sum() == (4 if cut == "in the middle" else 5) and len(found) < 32
    assert all(
        found.read(i) == whole.read(j) for i, j in zip(np.flatnonzero(found.shard == 1), range(8, 16), strict=True)
    )


def test_samples_without_picture_or_label_are_counted(tmp_path: Path) -> None:
    picture = toy_picture(0, 0)
    members = {"a/1.png": picture, "a/1.cls": b"0\n", "2.png": picture, "3.cls": b"1", "4.png": picture, "4.cls": b"x"}
    write_tar(tmp_path / "train-0.tar", {**members, "b.c/5.seg.png": picture, "6.JPG": picture, "6.cls": b"12"})
    with pytest.raises(DataError, match="4 damaged samples"):
        open_shards(str(tmp_path), "train")
    with pytest.warns(UserWarning, match="left out 4"):
        found = open_shards(str(tmp_path), "train", skip_bad=True)
    assert found.labels.tolist() == [0, 12] and found.skipped == 4


def test_what_is_no_shard_is_refused(shards: Path, tmp_path: Path) -> None:
    for data, message in [
        (tmp_path / "none", "no such data"),
        (tmp_path, "no shards of split 'train'"),
        (f"{shards}/train-{{000000..000009}}.tar", r"train-000004\.tar: no such shard \(6 of 10"),
        ("pipe:touch x", "not from pipe:"),
        ("s3://bucket/$(touch x).tar", "unusual characters"),
    ]:
        with pytest.raises(DataError, match=message):
            open_shards(str(data), "train")
    (shards / "train-index.json").write_text('{"format": 1, "classes": null, "shards": {"a": {"offsets": [-1]}}}')
    with pytest.raises(DataError, match="not an index of shards"):
        open_shards(str(shards), "train")


@pytest.fixture
def address(shards: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(shards))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_shards_are_fetched_when_they_are_needed(shards: Path, address: str, tmp_path: Path) -> None:
    local, found = open_shards(str(shards), "train"), open_shards(f"{address}/train-{{000000..000003}}.tar", "train")
    assert found.sha256 == local.sha256
    assert cached(tmp_path) == {"train-index.json"}
    assert found.read(9) == local.read(9)
    assert cached(tmp_path) == {"train-index.json", "train-000001.tar"}
    (shards / "train-000003.tar").unlink()
    with pytest.raises(DataError, match="404"):
        found.read(31)


@pytest.fixture
def flaky(shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str], list[str]]]:
    """A server of shards, what it was asked for, and what it does with the next requests for shards, if not right."""
    asked: list[str] = []
    faults: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            data = (shards / self.path[1:]).read_bytes()
            fault = faults.pop(0) if faults and self.path.endswith(".tar") else ""
            asked.append(self.path[1:])
            self.send_response(int(fault) if fault.isdigit() else 200)
            self.send_header("Content-Length", "0" if fault.isdigit() else str(len(data)))
            self.end_headers()
            if not fault.isdigit():
                time.sleep(0.05)  # long enough for other threads to ask too, if they may
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)

    monkeypatch.setattr(shard_files, "_WAITS_S", (0.0, 0.0))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/train-{{000000..000003}}.tar", asked, faults
        server.shutdown()


def test_threads_that_need_a_shard_fetch_it_once(shards: Path, flaky: tuple[str, list[str], list[str]]) -> None:
    address, asked, _ = flaky
    local, found = open_shards(str(shards), "train"), open_shards(address, "train")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(found.read, range(16))) == [local.read(index) for index in range(16)]
    assert sorted(asked) == ["train-000000.tar", "train-000001.tar", "train-index.json"]


def test_shards_are_asked_for_again_after_faults_that_pass(
    tmp_path: Path, flaky: tuple[str, list[str], list[str]]
) -> None:
    address, asked, faults = flaky
    found = open_shards(address, "train")
    faults += ["503", "cut"]
    assert found.read(0)[:4] == b"\x89PNG" and asked[1:] == 3 * ["train-000000.tar"]
    faults += ["404"]
    with pytest.raises(UnreachableShardError, match="the server answered 404"):
        found.read(8)
    faults += 3 * ["cut"]
    with pytest.raises(UnreachableShardError, match=r"it ended after \d+ of \d+ bytes"):
        found.read(8)
    assert cached(tmp_path) == {"train-index.json", "train-000000.tar"}  # Nothing by halves.


def test_a_shard_out_of_reach_is_no_damaged_picture(tmp_path: Path, flaky: tuple[str, list[str], list[str]]) -> None:
    address, _, faults = flaky
    recipe = recipe_from_dict(settings(address, tmp_path / "run", skip_bad=True))
    faults += 9 * ["403"]
    with pytest.raises(UnreachableShardError, match="the server answered 403"):
        train(recipe)


# Order


def test_every_sample_once_an_epoch_over_processes() -> None:
    shard = np.repeat(np.arange(7), [5, 9, 2, 8, 6, 1, 9])  # 40 samples
    orders = [ShardOrder(shard, 2, 8, seed=3) for _ in range(2)]
    for rank, order in enumerate(orders):
        order.start(torch.device("cpu"), rank, 2)
    epochs = []
    for epoch in range(3):
        seen = [order.rows(epoch, index).tolist() for index in range(5) for order in orders]
        epochs.append(sum(seen, []))
        assert sorted(epochs[-1]) == list(range(40)) and all(len(rows) == 4 for rows in seen)
        windows = [list(dict.fromkeys(shard[epochs[-1]].tolist()))]
        assert len(windows[0]) == 7
        # Two shards at a time, mixed with each other.
        places = {s: np.flatnonzero(shard[epochs[-1]] == s) for s in range(7)}
        neighbours = [
            {o for o in places if places[o].min() < places[s].max() and places[o].max() > places[s].min()}
            for s in places
        ]
        assert all(len(one | {s}) <= 2 for s, one in enumerate(neighbours)) and any(len(one) == 2 for one in neighbours)
    assert epochs[0] != epochs[1] != epochs[2]
    # From the middle, as a run that resumes: the same.
    again = ShardOrder(shard, 2, 8, seed=3)
    assert again.rows(1, 3).tolist() == epochs[1][24:32]
    assert ShardOrder(shard, 2, 8, seed=4).rows(1, 3).tolist() != epochs[1][24:32]


def test_crops_are_within_the_picture_and_the_bounds() -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        size = (int(rng.integers(30, 300)), int(rng.integers(30, 300)))
        top, left, height, width = random_crop(rng, size, (0.2, 1.0), (0.75, 4 / 3))
        assert top >= 0 and left >= 0 and top + height <= size[0] and left + width <= size[1]
        assert 0.7 < width / height < 1.42
        shares.append(height * width / (size[0] * size[1]))
    assert min(shares) < 0.3 and max(shares) > 0.8
    assert random_crop(rng, (50, 50), (1.0, 1.0), (1.0, 1.0)) == (0, 0, 50, 50)
    assert random_crop(rng, (10, 1000), (0.9, 1.0), (0.75, 4 / 3)) == (0, 493, 10, 13)


# Training


def test_training_on_shards_learns_and_resumes_in_an_epoch(shards: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "epochs": 8,
        "mixup": 0.0,
        "cutmix": 0.0,
        "dev_count": 8,
        "eval_every": 8,
        "drop_path": 0.0,
    }
    whole = settings(shards, tmp_path / "whole", **changes)
    result = train(recipe_from_dict(whole))
    assert result.finished and result.total_steps == 24
    records = read_metrics(tmp_path / "whole" / METRICS)
    losses = [line["loss"] for line in records if "loss" in line]
    assert losses[-1] < 0.75 * losses[0] and records[-1]["dev_top1"] == 100.0
    parts = recipe_from_dict({**whole, "output": str(tmp_path / "parts")})
    for steps in (2, 8):
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, steps)
            assert not train(parts, resume=steps > 2).finished
    assert train(parts, resume=True).finished
    a, b = (zoo.load(f"local-dir:{tmp_path / name}").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_damaged_pictures_stop_training_or_are_counted(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for number in range(8):
        members |= {f"{number}.png": toy_picture(number % 2, number), f"{number}.cls": str(number % 2).encode()}
    members["5.png"] = members["5.png"][:60] + bytes(60)
    write_tar(tmp_path / "train-0.tar", members)
    recipe = settings(tmp_path, tmp_path / "run", epochs=2)
    with pytest.raises(DataError, match=r"train-0\.tar at byte \d+: .*use skip_bad"):
        train(recipe_from_dict(recipe))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert train(recipe_from_dict({**recipe, "output": str(tmp_path / "skipped"), "skip_bad": True})).finished
    assert sum("damaged picture left out" in str(one.message) for one in said) == 1
    assert '"skipped": 1' in (tmp_path / "skipped" / RECORD).read_text()


def test_processes_take_their_parts_of_a_batch(shards: Path, tmp_path: Path) -> None:
    recipe = recipe_from_dict(settings(shards, tmp_path, flip=0.0, augmentation="none", mixup=0.0, cutmix=0.0))
    model = zoo.load(recipe.model, pretrained=False, input_size=16, **recipe.model_options)
    parts = []
    for rank, world in ((0, 1), (0, 2), (1, 2)):
        task = ShardedClassification(recipe)
        task.start(model, torch.device("cpu"), rank, world)
        parts.append(task.batch(1, 2))
        task.close()
    for whole, first, second in zip(*parts, strict=True):
        assert torch.equal(whole, torch.cat([first, second]))


def test_recipes_for_shards_are_checked() -> None:
    base = {"model": "pape-vit-t-imagenette", "task": "image-classification-shards"}
    with pytest.raises(ConfigError, match="store_size is for pictures that are packed"):
        recipe_from_dict({**base, "store_size": 160})
    with pytest.raises(ConfigError, match="window must be at least 1"):
        recipe_from_dict({**base, "window": 0})


def test_the_recipe_for_imagenet_runs_on_made_up_shards(shards: Path, tmp_path: Path) -> None:
    options = {"dim": 32, "depth": 1, "num_heads": 1, "head_dim": 32, "mlp_dim": 64}
    small = {"model_options": options, "image_size": 32, "batch_size": 8, "steps": 2, "window": 2, "dev_count": 4}
    small |= {"dev_fraction": 0.0, "device": "cpu", "compile": False, "precision": "float32"}
    recipe = load_recipe("imagenet", {**small, "data": str(shards), "output": str(tmp_path / "run")})
    assert load_recipe("imagenet").model == "pape-vit-b-in1k" and load_recipe("imagenet").batch_size == 1024
    assert train(recipe).finished
    model = zoo.load(f"local-dir:{tmp_path / 'run'}")
    assert model.config["labels"] == ["dark", "bright"] and model.data_config.input_size == (3, 32, 32)


def features(model: Any, label: int) -> torch.Tensor:
    """What the head sees of a toy picture of a class."""
    from modalities.image.transforms import preprocess_batch
    from zoo.reading import read

    rgb = read(toy_picture(label, 99), kind="image").rgb
    batch = preprocess_batch(torch.from_numpy(rgb.transpose(2, 0, 1).copy())[None], model.data_config, (SIZE, SIZE))
    seen = []
    with model.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0])):
        model.eval()(batch)
    return seen[0][0]


def test_evaluation_of_shards_is_that_of_their_source(
    data: Path, shards: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from zoo.cli.main import main

    model = zoo.load("pape-vit-t-imagenette", pretrained=False, num_classes=2, input_size=16, **TINY)
    with torch.no_grad():  # Tells the classes apart by brightness, as the features of pictures that were not seen do.
        bright, dark = (features(model, label) for label in (1, 0))
        model.head.weight[:] = torch.stack([dark - bright, bright - dark])
        model.head.bias[:] = (model.head.weight @ (bright + dark)) / -2
    packed, sharded = (evaluate_data(model, folder, batch_size=5) for folder in (data, shards))
    assert sharded["images"] == 12 and packed["results"][0]["top1"] == sharded["results"][0]["top1"] > 90
    assert evaluate_data(model, shards, limit=3)["images"] == 3
    with pytest.raises(SystemExit) as stop:
        main(["make-shards", str(data), "--out", str(tmp_path / "cli"), "--splits", "train", "--samples", "20"])
    assert stop.value.code == 0 and "train-*.tar: 32 pictures in 2 shards" in capsys.readouterr().out
