from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_toys import SIZE, toy_picture, write_parquet, write_toys

import modalities.image.packing as packing
from modalities.image.augment import AUGMENTATIONS, BatchAugmentation, ImageOptions
from modalities.image.data import open_packed, pack, pictures
from modalities.image.sources import open_source
from modalities.image.task import ImageClassification
from zoo.data_config import DataConfig
from zoo.errors import DataError, MissingDependencyError
from zoo.reading import read
from zoo.training.holdout import split_dev
from zoo.training.recipe import recipe_from_dict


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_toys(tmp_path / "toys")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo-cache"))


# Packing


def test_packed_pictures_are_the_decoded_ones(data: Path) -> None:
    packed = pictures(data, "train")
    assert len(packed) == 32 and packed.uniform and packed.class_names == ["dark", "bright"]
    assert packed.labels.tolist() == [i % 2 for i in range(32)]
    for i in (0, 5, 31):
        expected = read(toy_picture(i % 2, i), kind="image").rgb.transpose(2, 0, 1)
        assert np.array_equal(packed[i], expected)
    assert np.array_equal(packed[-1], packed[31])
    assert packed.stacked().shape == (32, 3, SIZE, SIZE)
    with pytest.raises(IndexError):
        packed[32]


def test_grayscale_becomes_rgb(data: Path) -> None:
    gray = pictures(data, "train")[3]
    assert gray.shape == (3, SIZE, SIZE)
    assert np.array_equal(gray[0], gray[1]) and np.array_equal(gray[0], gray[2]) and gray.std() > 0


def test_decoded_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pictures(data, "train")
    with monkeypatch.context() as patch:
        patch.setattr(packing, "decode", lambda *_: pytest.fail("decoded again"))
        again = pictures(data, "train")
    assert np.array_equal(first.pixels, again.pixels)
    write_toys(data, train=34)  # other contents under the same name
    assert len(pictures(data, "train")) == 34


def test_only_train_is_needed(data: Path) -> None:
    (data / "validation.parquet").unlink()
    assert len(pictures(data, "train")) == 32
    with pytest.raises(DataError, match=r"no split 'validation'; expected validation.parquet"):
        pictures(data, "validation")


@pytest.mark.parametrize("damage", ["truncate", "flip", "labels", "meta", "remove"])
def test_damaged_packed_file_is_found_and_repaired(data: Path, tmp_path: Path, damage: str) -> None:
    whole = np.array(pictures(data, "train").pixels)
    (folder,) = (tmp_path / "zoo-cache" / "packed").iterdir()
    pixels = folder / "pixels.u8"
    content = bytearray(pixels.read_bytes())
    if damage == "truncate":
        pixels.write_bytes(content[:-1])
    elif damage == "flip":
        content[1000] ^= 1
        pixels.write_bytes(content)
    elif damage == "labels":
        np.save(folder / "labels.npy", np.zeros(32, dtype=np.int64))
    elif damage == "meta":
        (folder / "meta.json").write_text("{")
    else:
        (folder / "shapes.npy").unlink()
    with pytest.raises(DataError, match="damaged packed pictures"):
        open_packed(folder)
    assert np.array_equal(pictures(data, "train").pixels, whole)


def test_packed_folder_can_be_given_directly(data: Path, tmp_path: Path) -> None:
    packed = pictures(data, "train")
    (folder,) = (tmp_path / "zoo-cache" / "packed").iterdir()
    again = pictures(folder, "train")
    assert np.array_equal(packed.pixels, again.pixels)


def test_damaged_picture_names_the_row(tmp_path: Path) -> None:
    records = [(toy_picture(i % 2, i), i % 2) for i in range(6)]
    records[4] = (records[4][0][:60], 0)
    write_parquet(tmp_path / "bad" / "train.parquet", records)
    with pytest.raises(DataError, match=r"train\.parquet row 4: .*skip_bad"):
        pictures(tmp_path / "bad", "train")
    assert not list((tmp_path / "zoo-cache" / "packed").iterdir())  # nothing half-written
    for _ in range(2):  # packing and opening again both say so
        with pytest.warns(UserWarning, match="1 damaged pictures left out, first .* row 4"):
            packed = pictures(tmp_path / "bad", "train", skip_bad=True)
    assert len(packed) == 5 and len(packed.meta["skipped"]) == 1 and "row 4" in packed.meta["skipped"][0]


def test_class_folders(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for label, name in enumerate(["cat", "dog"]):
            folder = tmp_path / "set" / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                (folder / f"{i}.png").write_bytes(toy_picture(label, i))
            (folder / "notes.txt").write_text("not a picture")
    packed = pictures(tmp_path / "set", "train")
    assert packed.class_names == ["cat", "dog"] and packed.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(pictures(tmp_path / "set", "validation")) == 6
    (tmp_path / "set" / "train" / "dog" / "1.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"dog/1\.png"):
        pictures(tmp_path / "set", "train")


def test_unequal_pictures(tmp_path: Path) -> None:
    sizes = [(20, 16), (16, 24), (18, 18)]
    write_parquet(tmp_path / "u" / "train.parquet", [(toy_picture(0, i, s), 0) for i, s in enumerate(sizes)])
    packed = pictures(tmp_path / "u", "train")
    assert [packed[i].shape for i in range(3)] == [(3, *s) for s in sizes]
    with pytest.raises(DataError, match="store_size"):
        packed.stacked()
    fitted = pictures(tmp_path / "u", "train", size=12)
    assert fitted.stacked().shape == (3, 3, 12, 12)


def test_sources_say_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(DataError, match="no such data"):
        open_source(tmp_path / "nowhere", "train")
    (tmp_path / "train.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        open_source(tmp_path, "train")
    pq.write_table(pa.table({"picture": [1]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="no column 'image'"):
        open_source(tmp_path, "train")
    write_parquet(tmp_path / "train.parquet", [(toy_picture(0, 0), 5)], ["one", "two"])
    with pytest.raises(DataError, match="row 0: label 5"):
        pictures(tmp_path, "train")
    (tmp_path / "empty" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no pictures"):
        open_source(tmp_path / "empty", "train")
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pape-zoo\[data\]"):
        open_source(tmp_path, "train")


def test_two_packers_do_not_disturb_each_other(data: Path, tmp_path: Path) -> None:
    source = open_source(data, "train")
    first = pack(source, tmp_path / "p" / "set")
    second = pack(source, tmp_path / "p" / "set")
    assert np.array_equal(first.pixels, second.pixels)
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["set"]
    assert json.loads((tmp_path / "p" / "set" / "meta.json").read_text())["source_sha256"] == source.sha256


# Augmentation

CONFIG = DataConfig(input_size=(3, 12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def batch(count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % 3


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_augmentation_depends_on_the_seed_alone(augmentation: str) -> None:
    augment = BatchAugmentation(
        ImageOptions(augmentation=augmentation, augment_group=2), CONFIG, 3, torch.device("cpu")
    )
    pictures, labels = batch()
    kept = pictures.clone()
    torch.manual_seed(1)
    a, ta = augment(pictures, labels, 7)
    torch.manual_seed(2)
    np.random.seed(3)
    b, tb = augment(pictures, labels, 7)
    c, _ = augment(pictures, labels, 8)
    assert torch.equal(a, b) and torch.equal(ta, tb) and not torch.equal(a, c)
    assert torch.equal(pictures, kept)
    assert a.shape == (8, 3, 12, 12) and a.dtype == torch.float32 and torch.isfinite(a).all()
    assert torch.allclose(ta.sum(dim=1), torch.ones(8))


def test_without_augmentation_pictures_are_only_normalised() -> None:
    options = ImageOptions(crop_scale=(1, 1), crop_ratio=(1, 1), flip=0, augmentation="none", mixup=0, cutmix=0)
    config = DataConfig(input_size=(3, SIZE, SIZE), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    pictures, labels = batch()
    images, targets = BatchAugmentation(options, config, 3, torch.device("cpu"))(pictures, labels, 0)
    assert torch.allclose(images, (pictures / 255 - 0.5) / 0.25, atol=1e-5)
    assert torch.equal(targets, labels)


def test_group_shares_a_draw_and_groups_differ() -> None:
    options = ImageOptions(augmentation="jitter", augment_group=4, mixup=0, cutmix=0)
    picture = batch(1)[0]
    pictures = picture.expand(8, -1, -1, -1).contiguous()
    images, _ = BatchAugmentation(options, CONFIG, 3, torch.device("cpu"))(pictures, torch.zeros(8).long(), 3)
    assert all(torch.equal(images[0], images[i]) for i in range(1, 4))
    assert all(torch.equal(images[4], images[i]) for i in range(5, 8))
    assert not torch.equal(images[0], images[4])


def test_mixup_mixes_targets_as_pictures() -> None:
    options = ImageOptions(
        crop_scale=(1, 1), crop_ratio=(1, 1), flip=0, augmentation="none", mixup=1.0, cutmix=0, label_smoothing=0
    )
    config = DataConfig(input_size=(3, 4, 4))
    pictures = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    pictures[1] = 255
    images, targets = BatchAugmentation(options, config, 2, torch.device("cpu"))(pictures, torch.tensor([0, 1]), 5)
    share = targets[0, 1]  # of the white picture in the first one
    assert 0 < share < 1
    assert torch.allclose(images[0], share.expand(3, 4, 4), atol=1e-6)


# The task


def task(data: Path, **changes: object) -> ImageClassification:
    settings = {"model": "x", "data": str(data), "batch_size": 8, "image_size": SIZE, "augment_group": 4, **changes}
    return ImageClassification(recipe_from_dict(settings))


class Model(torch.nn.Module):
    data_config = DataConfig(input_size=(3, SIZE, SIZE))


def test_batches_follow_from_seed_epoch_and_step(data: Path) -> None:
    first, second, other = task(data), task(data), task(data, seed=1)
    for t in (first, second, other):
        t.start(Model(), torch.device("cpu"), 0, 1)
    wanted = [first.batch(e, i) for e in range(2) for i in range(4)]
    again = {(e, i): second.batch(e, i) for e in (1, 0) for i in (3, 0, 2, 1)}  # in another order
    for k, (images, targets) in enumerate(wanted):
        assert torch.equal(images, again[divmod(k, 4)][0]) and torch.equal(targets, again[divmod(k, 4)][1])
    assert not torch.equal(wanted[0][0], wanted[4][0])
    assert not torch.equal(wanted[0][0], other.batch(0, 0)[0])


def test_an_epoch_shows_every_picture_once_and_processes_share_it(data: Path) -> None:
    plain = {"mixup": 0, "cutmix": 0, "augmentation": "none", "flip": 0, "crop_scale": [1, 1], "crop_ratio": [1, 1]}
    alone, left, right = (task(data, **plain) for _ in range(3))
    alone.start(Model(), torch.device("cpu"), 0, 1)
    left.start(Model(), torch.device("cpu"), 0, 2)
    right.start(Model(), torch.device("cpu"), 1, 2)
    seen = []
    for i in range(alone.steps_per_epoch):
        whole = alone.batch(0, i)[0]
        parts = torch.cat([left.batch(0, i)[0], right.batch(0, i)[0]])
        assert torch.equal(whole, parts)
        seen += [x.numpy().tobytes() for x in whole]
    assert len(set(seen)) == 32


def test_dev_split_is_fixed_and_apart(data: Path) -> None:
    train, dev = split_dev(100, 0, 0.2)
    assert len(dev) == 20 and sorted([*train, *dev]) == list(range(100))
    assert (split_dev(100, 20, 0.0)[1] == dev).all()
    a, b = task(data, dev_count=8), task(data, dev_count=8, seed=5)
    assert (a.dev_rows == b.dev_rows).all() and a.steps_per_epoch == 3
    a.start(Model(), torch.device("cpu"), 0, 1)
    assert len(a.images) == 24
