"""Point data sets in their published layouts: what is in a split, its labels, and what is said of damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import point_sets
import pytest
from point_files import cloud
from point_sets import SETS

from modalities.points.datasets import DATASETS, IGNORED, open_dataset
from zoo.errors import ConfigError, DataError

X = IGNORED


@pytest.mark.parametrize("kind", SETS)
def test_every_layout_is_known_and_read(tmp_path, kind):
    root = SETS[kind](tmp_path)
    for split in ("train", "test"):
        if kind == "kitti" and split == "test":
            continue
        found, told = open_dataset(root, split), open_dataset(root, split, kind)
        assert type(found) is type(told) and found.split == split and found.sha256 == told.sha256
        assert len(found) >= 1 and len(found.sha256) == 64
        for index in range(len(found)):
            points = found[index]
            assert len(points) and np.isfinite(points.xyz).all()
            if kind != "kitti":
                label = points.fields["label"]
                assert label.dtype == np.int64 and label.shape == (len(points),)
                assert ((label == IGNORED) | (label < len(found.class_names))).all()
        assert np.array_equal(found[-1].xyz, found[len(found) - 1].xyz)
        with pytest.raises(IndexError):
            found[len(found)]
    assert set(SETS) == set(DATASETS)


@pytest.mark.parametrize("kind", list(SETS))
def test_every_split_is_stated(tmp_path, kind):
    path = SETS[kind](tmp_path)
    splits = DATASETS[kind].splits
    assert open_dataset(path, "train", kind).splits == splits and "test" in splits
    for split in {"train", "val", "test", "all"} - set(splits):
        with pytest.raises(ConfigError, match=f"has the splits {', '.join(splits)}, not '{split}'"):
            open_dataset(path, split, kind)


def test_hash_follows_the_content(tmp_path):
    first = point_sets.modelnet(tmp_path / "a")
    copy = Path(shutil.copytree(first, tmp_path / "b"))
    assert open_dataset(first, "train").sha256 == open_dataset(copy, "train").sha256
    assert open_dataset(first, "train").sha256 != open_dataset(first, "test").sha256
    file = copy / "bathtub" / "train" / "bathtub_0000.off"
    file.write_bytes(file.read_bytes().replace(b"OFF\n", b"OFF \n"))
    assert open_dataset(first, "train").sha256 != open_dataset(copy, "train").sha256
    labels = point_sets.semantickitti(tmp_path / "k") / "dataset/sequences/00/labels/000000.label"
    before = open_dataset(tmp_path / "k", "train").sha256
    labels.write_bytes(bytes(32))
    assert open_dataset(tmp_path / "k", "train").sha256 != before


def test_meshes_of_modelnet(tmp_path):
    root = point_sets.modelnet(tmp_path)
    data = open_dataset(root, "train", num_points=64)
    assert data.class_names == ("bathtub", "night_stand") and data.labels.tolist() == [0, 0, 1, 1]
    points = data[2]
    assert len(points) == 64 and points.fields["normal"].shape == (64, 3) and (points.fields["label"] == 1).all()
    assert np.array_equal(points.xyz, open_dataset(root, "train", num_points=64)[2].xyz)
    assert not np.array_equal(points.xyz, open_dataset(root, "train", num_points=64, seed=1)[2].xyz)
    whole = open_dataset(root, "test", num_points=None)[0]
    assert len(whole) == 12 and whole.faces is not None


def test_sampled_clouds_of_modelnet(tmp_path):
    data = open_dataset(point_sets.modelnet_sampled(tmp_path), "train")
    assert data.labels.tolist() == [0, 0, 1, 1] and data.class_names == ("airplane", "tv_stand")
    assert data.name == "modelnet40" and data[3].fields["normal"].shape == (7, 3)
    (tmp_path / "modelnet40_train.txt").write_text("../../secret_0001\n")
    with pytest.raises(DataError, match="of no class of the data set"):
        open_dataset(tmp_path, "train")


def test_arrays_of_modelnet(tmp_path):
    path = point_sets.modelnet_arrays(tmp_path)
    data = open_dataset(path, "train")
    raw = np.load(path)
    assert data.class_names == ("chair", "bed") and data.labels.tolist() == [0, 1, 0, 1]
    assert np.array_equal(np.rint(data[1].xyz * 32767).astype(int), raw["train_xyz"][1]) and data[1].name == "chair_1"
    np.savez(path, **{**raw, "train_label": np.array([0, 1, 2, 9], np.uint8)})
    with pytest.raises(DataError, match="outside the 2 classes"):
        open_dataset(path, "train")


def test_labels_of_scannet(tmp_path):
    root = point_sets.scannet(tmp_path / "a")
    data = open_dataset(root, "val")
    points = data[0]
    assert points.fields["label"].tolist() == [0, 1, 19, 18, X, X, X] and points.fields["rgb"].dtype == np.uint8
    assert len(data.class_names) == 20 and data.class_names[19] == "otherfurniture"
    assert (open_dataset(root, "test")[0].fields["label"] == X).all()
    prepared = open_dataset(point_sets.scannet_arrays(tmp_path / "b"), "train")[0]
    assert prepared.fields["label"].tolist() == [0, 1, 19, X, X, 5, 2] and prepared.xyz.dtype == np.float64
    assert list(prepared.fields) == ["rgb", "normal", "label"]
    (root / "scans/scene0011_00/scene0011_00_vh_clean_2.labels.ply").unlink()
    with pytest.raises(DataError, match=r"scene0011_00_vh_clean_2\.labels\.ply; expected the labels"):
        open_dataset(root, "val")
    (root / "scannetv2_val.txt").write_text("../x\n")
    with pytest.raises(DataError, match="is no scene"):
        open_dataset(root, "val")


def test_rooms_of_s3dis(tmp_path):
    root = point_sets.s3dis(tmp_path)
    train, test = open_dataset(root, "train"), open_dataset(root, "test")
    assert (len(train), len(test)) == (2, 1) and "Area_5" in test[0].name
    room = test[0]
    assert room.fields["label"].tolist() == [0] * 3 + [8] * 3 + [12] * 3
    assert np.array_equal(room.xyz[3:6], cloud(3, 1)["xyz"]) and np.array_equal(room.fields["rgb"][:3], cloud(3)["rgb"])
    assert len(open_dataset(root, "train", test_area=6)) == 2
    with pytest.raises(ConfigError, match="areas 1 to 6"):
        open_dataset(root, "test", test_area=7)


def test_labels_of_semantickitti(tmp_path):
    root = point_sets.semantickitti(tmp_path)
    points = open_dataset(root, "val")[0]
    assert points.fields["label"].tolist() == [0, 0, 17, X, X, 8, 8, X]
    assert points.fields["instance"].tolist() == list(range(8)) and "intensity" in points.fields
    assert (open_dataset(root, "test")[0].fields["label"] == X).all()
    path = root / "dataset/sequences/08/labels/000000.label"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with pytest.raises(DataError, match="28 bytes for the 8 points"):
        open_dataset(root, "val")[0]
    path.write_bytes(np.full(8, 77, "<u4").tobytes())
    with pytest.raises(DataError, match=r"labels \[77\] are not of this data set"):
        open_dataset(root, "val")[0]


def test_frames_of_kitti(tmp_path):
    folder = open_dataset(point_sets.kitti(tmp_path / "a"), "train")
    archive = open_dataset(point_sets.kitti_zip(tmp_path), "train")
    assert [archive.id(i) for i in range(2)] == [folder.id(i) for i in range(2)] == ["000001", "000008"]
    assert np.array_equal(archive[1].xyz, folder[1].xyz) and np.array_equal(folder[0].xyz, cloud(4, 1)["xyz"])
    (tmp_path / "frames.zip").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match="no readable archive"):
        open_dataset(tmp_path / "frames.zip", "train")


def test_split_in_space_of_the_airborne_tiles(tmp_path):
    path = point_sets.als(tmp_path)
    train, test, whole = (open_dataset(path, split) for split in ("train", "test", "all"))
    assert len(train) == len(test) == 2 and train.class_names == ("ground", "vegetation", "building")
    for index, axis in ((0, 0), (1, 1)):
        near, far = train[index].xyz[:, axis], test[index].xyz[:, axis]
        assert (len(near), len(far), len(whole[index])) == (60, 35, 101)
        assert far.min() - near.max() > 5  # The strip between them.
    assert train[0].xyz[0].tolist() == [700_000, 6_500_000, 100] and train[1].xyz[1].tolist() == [
        350_000,
        3_250_001,
        51,
    ]
    assert train[0].fields["label"][:8].tolist() == [X, X, 0, 1, 1, 1, 2, X]
    assert "rgb" in train[0].fields and "rgb" not in train[1].fields
    assert len(open_dataset(path, "train", tiles=("along_y",))) == 1
    with pytest.raises(DataError, match="no tile nowhere"):
        open_dataset(path, "train", tiles=("nowhere",))


def test_a_folder_may_hold_the_file(tmp_path):
    path = point_sets.als(tmp_path)
    assert open_dataset(tmp_path, "train").sha256 == open_dataset(path, "train").sha256
    assert len(open_dataset(tmp_path, "all", "als")) == len(open_dataset(path, "all"))
    (tmp_path / "other.zip").write_bytes(b"of another kind")
    assert len(open_dataset(tmp_path, "all")) == len(open_dataset(path, "all"))
    (tmp_path / "second.npz").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match=r"no known layout.*one \.npz"):
        open_dataset(tmp_path, "train")


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(DataError, match="no such data"):
        open_dataset(tmp_path / "absent", "train")
    with pytest.raises(DataError, match="no known layout; expected <class>/train"):
        open_dataset(tmp_path, "train")
    with pytest.raises(ConfigError, match="dataset must be auto or one of modelnet"):
        open_dataset(tmp_path, "train", "imagenet")
    root = point_sets.modelnet(tmp_path / "m")
    with pytest.raises(ConfigError, match="splits train, test, not 'val'"):
        open_dataset(root, "val")
    with pytest.raises(ConfigError, match="an option it does not have"):
        open_dataset(root, "train", colour=3)
    np.savez(tmp_path / "a.npz", x=1)
    with pytest.raises(DataError, match="no known data set; it holds x"):
        open_dataset(tmp_path / "a.npz", "train")
    (tmp_path / "s" / "Area_1").mkdir(parents=True)
    with pytest.raises(DataError, match="no clouds of the split train"):
        open_dataset(tmp_path / "s", "train")


@pytest.mark.parametrize("kind", ["modelnet", "semantickitti", "scannet", "s3dis"])
def test_damaged_files(tmp_path, kind):
    root = SETS[kind](tmp_path)
    files = open_dataset(root, "train").files
    victim = sorted((files[0] / "Annotations").iterdir())[0] if kind == "s3dis" else files[0]
    data = victim.read_bytes()
    victim.write_bytes(data[: len(data) // 2 + 1])
    with pytest.raises(DataError, match=victim.name.replace(".", r"\.")):
        open_dataset(root, "train")[0]


@pytest.mark.parametrize(("kind", "module"), [("modelnet-arrays", "modelnet"), ("als", "outdoor")])
def test_arrays_are_bounded_together(tmp_path, monkeypatch, kind, module):
    path = SETS[kind](tmp_path)
    with np.load(path) as arrays:
        largest = max(array.nbytes for array in arrays.values())
    monkeypatch.setattr(f"modalities.points.datasets.{module}._MAX_BYTES", largest)
    with pytest.raises(DataError, match=f"at most {largest} are read of all arrays together"):
        open_dataset(path, "train")


def test_real_data_sets(shared: Path):
    data = open_dataset(shared / "data/als_semseg/als_semseg.npz", "train")
    test = open_dataset(shared / "data/als_semseg/als_semseg.npz", "test")
    whole = open_dataset(shared / "data/als_semseg/als_semseg.npz", "all")
    assert data.tiles == ("ign_50mx100m", "nebraska", "lidarhd_thin")
    for index in range(3):
        axis = int(np.argmax(np.ptp(whole[index].xyz[:, :2], axis=0)))
        assert data[index].xyz[:, axis].max() < test[index].xyz[:, axis].min()
        assert {0} <= set(data[index].fields["label"].tolist()) <= {0, 1, 2, X}
    frames = open_dataset(shared / "data/kitti_frames/kitti_frames.zip", "train")
    assert len(frames) == 6 and frames.id(3) == "000008" and len(frames[3]) == 17_238
    test10 = open_dataset(shared / "data/modelnet10_1024/modelnet10_1024.npz", "test")
    assert len(test10) == 908 and len(test10.class_names) == 10
    assert np.bincount(test10.labels).tolist() == [50, 100, 100, 86, 86, 100, 86, 100, 100, 100]
    assert np.abs(test10[7].xyz).max() <= 1
