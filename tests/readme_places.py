"""The files and folders that README.md names, small and made up, or the real ones where they are at hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import event_files
import finetune_toys
import numpy as np
import point_files
import point_training_sets
import sequence_files
import sequence_training
import training_toys
from detection_toys import write_toys as write_boxes
from event_sets import write_archive, write_nmnist
from PIL import Image
from video_files import write_video

ROOT = Path(__file__).resolve().parent.parent


def _picture(path: Path) -> None:
    Image.open(ROOT / "samples" / "church.jpg").save(path)


def _pictures(path: Path) -> None:
    path.mkdir()
    for name in ("church", "golf_ball"):
        shutil.copy(ROOT / "samples" / f"{name}.jpg", path)


def _labelled(path: Path) -> None:
    """Parquet, some pictures of two classes."""
    training_toys.write_toys(path, train=16, validation=8)


def _of_imagenette(path: Path) -> None:
    """The same, with the classes of Imagenette."""
    names = json.loads((ROOT / "hub_cards/pape-vit-n-imagenette/config.json").read_text())["labels"]
    for split in ("train", "validation"):
        records = [(training_toys.toy_picture(i % 2, i, (32, 32)), i % 2) for i in range(8)]
        training_toys.write_parquet(path / f"{split}.parquet", records, names)


def _boxes(path: Path) -> None:
    write_boxes(path, train=4, validation=2)
    shutil.copy(path / "validation.parquet", path / "test.parquet")


def _class_folders(path: Path) -> None:
    finetune_toys.write_pictures(path, 4)


def _split_class_folders(path: Path) -> None:
    for split, offset in (("train", 0), ("validation", 50)):
        finetune_toys.write_pictures(path / split, 4, offset)


def _digits(path: Path) -> None:
    write_archive(write_nmnist(path.parent / "nmnist", train=2, test=1), path)


def _recording(path: Path) -> None:
    header = "% Version 2\n% Width 304\n% Height 240\n"
    path.write_bytes(event_files.dat(event_files.draw(2_000, width=304, height=240), header))


def _digit(path: Path) -> None:
    path.write_bytes(event_files.nmnist(event_files.draw(400, width=34, height=34)))


def _video(path: Path) -> None:
    write_video(path, pixels=np.random.default_rng(0).integers(0, 256, (24, 64, 64, 3), dtype=np.uint8))


def _tile(path: Path) -> None:
    data = point_files.cloud(3_000)
    data["xyz"] = data["xyz"] % 16
    path.write_bytes(point_files.las(data, compress=path.suffix == ".laz"))


def _chair(path: Path) -> None:
    path.write_bytes(point_files.ply(point_files.cloud(1_200)))


def _objects(path: Path) -> None:
    point_training_sets.write_modelnet10(path.parent / "objects").rename(path)


def _tiles(path: Path) -> None:
    point_training_sets.write_als(path.parent / "als").rename(path)


def _chorales(path: Path) -> None:
    sequence_training.write_chorales(path.parent)
    with np.load(path) as small:
        arrays = {name: np.concatenate([small[name]] * 48) for name in small.files}
    np.savez(path, **arrays)


def _chorale(path: Path) -> None:
    from modalities.sequence.midi import to_midi

    path.write_bytes(to_midi(np.random.default_rng(0).integers(60, 64, (16, 4))))


def _text(path: Path) -> None:
    path.write_text("ROMEO: to be, or not to be\n" * 1_200, encoding="utf-8")


def _texts(path: Path) -> None:
    sequence_files.write_parquet(path, [sequence_files.TEXT * 40] * 40)


def _books(path: Path) -> None:
    """Long enough for windows of 10,240 tokens."""
    for split in ("train", "validation", "test"):
        (path / split).mkdir(parents=True)
        (path / split / "1.txt").write_text(sequence_files.TEXT * 800, encoding="utf-8")


def _tokenizer(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    sequence_files.write_tokenizer(path.parent)


def _recipe(path: Path) -> None:
    shutil.copy(ROOT / "modalities" / "image" / "recipes" / "imagenette.yaml", path)


MADE: dict[str, Callable[[Path], None]] = {
    "photo.jpg": _picture,
    "photo.png": _picture,
    "slide.jpg": _picture,
    "photos": _pictures,
    "DIR": _labelled,
    "IMAGENETTE": _of_imagenette,
    "BCCD": _boxes,
    "PHOTOS": _class_folders,
    "IMAGENET": _split_class_folders,
    "nmnist_1100.tar.xz": _digits,
    "recording.dat": _recording,
    "digit.bin": _digit,
    "clip.mp4": _video,
    "tile.laz": _tile,
    "chair.ply": _chair,
    "modelnet10_1024.npz": _objects,
    "als_semseg.npz": _tiles,
    "jsb_chorales.npz": _chorales,
    "chorale.mid": _chorale,
    "input.txt": _text,
    "openwebtext": _texts,
    "pg19": _books,
    "gpt2/tokenizer.json": _tokenizer,
    "my_recipe.yaml": _recipe,
}
"""Name in README -> what makes it at a path."""

REAL = {
    "DIR": "imagenette",
    "IMAGENETTE": "imagenette",
    "BCCD": "bccd",
    "nmnist_1100.tar.xz": "nmnist_1100/nmnist_1100.tar.xz",
    "modelnet10_1024.npz": "modelnet10_1024/modelnet10_1024.npz",
    "als_semseg.npz": "als_semseg/als_semseg.npz",
    "jsb_chorales.npz": "jsb_chorales/jsb_chorales.npz",
    "input.txt": "tiny_shakespeare/input.txt",
}
"""Name in README -> where the shared data set of that name is."""
