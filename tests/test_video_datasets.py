"""UCF101, HMDB51 and Kinetics in their official layouts, made of tiny videos."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")

from video_sets import UCF_CLASSES, write_hmdb51, write_kinetics, write_ucf101

from modalities.video.datasets import HMDB51, UCF101, Kinetics, open_videos
from zoo.errors import ConfigError, DataError


def test_ucf101_splits_by_the_lists_and_keeps_groups_together(tmp_path: Path) -> None:
    root = write_ucf101(tmp_path, videos=False)
    for fold in (1, 2, 3):
        train, val, test = (UCF101(root, split, fold=fold) for split in ("train", "val", "test"))
        assert train.class_names == list(UCF_CLASSES) and train.name == "ucf101"
        groups = [set(part.groups) for part in (train, val, test)]
        assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
        assert len(train) + len(val) + len(test) == 2 * 2 * 4
        for part in (train, val, test):
            assert [part.class_names[label] for label in part.labels] == [group.split()[0] for group in part.groups]
    # The first group of the training list of each class: fold 1 tests group 1, so it is group 2.
    assert set(UCF101(root, "val").groups) == {"ApplyEyeMakeup g02", "YoYo g02"}
    assert set(UCF101(root, "validation", fold=2).groups) == {"ApplyEyeMakeup g01", "YoYo g01"}
    whole = UCF101(root, "train", validation=False)
    assert len(whole) == 12 and {"YoYo g02", "YoYo g03"} <= set(whole.groups)
    assert UCF101(root, "train").sha256 != UCF101(root, "test").sha256


def test_ucf101_refuses_divided_groups_and_wrong_lists(tmp_path: Path) -> None:
    root = write_ucf101(tmp_path, videos=False)
    lists = root / "ucfTrainTestlist"
    good = (lists / "testlist01.txt").read_text()
    (lists / "testlist01.txt").write_text(good + "YoYo/v_YoYo_g02_c01.avi\n")
    with pytest.raises(DataError, match="the group YoYo g02 is in the training and in the test list"):
        UCF101(root)
    for line in ("../../etc/passwd", "Nothing/v_Nothing_g01_c01.avi", "YoYo/../v_YoYo_g01_c01.avi", "YoYo/x.avi"):
        (lists / "testlist01.txt").write_text(line + "\n")
        with pytest.raises(DataError, match=r"testlist01\.txt: expected '<class>/v_"):
            UCF101(root, "test")
    (lists / "testlist01.txt").write_text(good + "YoYo/v_YoYo_g01_c99.avi\n")
    with pytest.raises(DataError, match=r"1 of 5 videos are not there, first .*c99\.avi"):
        UCF101(root, "test")
    for text in ("1 A\n3 B\n", "1 A\n2 A\n", "A 1\n", "1 ../A\n"):
        (lists / "classInd.txt").write_text(text)
        with pytest.raises(DataError, match=r"classInd\.txt"):
            UCF101(root)
    with pytest.raises(ConfigError, match="fold must be 1, 2 or 3"):
        UCF101(root, fold=4)
    with pytest.raises(ConfigError, match="split must be one of"):
        UCF101(root, "dev")
    with pytest.raises(DataError, match="no ucfTrainTestlist"):
        UCF101(tmp_path / "absent")


def test_videos_of_a_set_are_read(tmp_path: Path) -> None:
    data = open_videos(write_ucf101(tmp_path), "test")
    clip = data.reader(0).at(np.array([0, 3]))
    assert clip.frames.shape == (2, 48, 64, 3) and data.files[0].name == "v_ApplyEyeMakeup_g01_c01.avi"


def test_hmdb51_reads_the_role_of_each_video(tmp_path: Path) -> None:
    root = write_hmdb51(tmp_path)
    train, test = HMDB51(root, "train"), HMDB51(root, "test")
    assert train.class_names == ["brush_hair", "wave"]
    assert [file.name for file in train.files] == ["a brush (1).avi", "b.avi", "wave1.avi"]
    assert [file.name for file in test.files] == ["wave2.avi"] and test.labels.tolist() == [1]
    assert isinstance(open_videos(root, "train", fold=2), HMDB51)
    with pytest.raises(ConfigError, match="no validation split"):
        HMDB51(root, "val")
    table = root / "testTrainMulti_7030_splits" / "wave_test_split1.txt"
    for line in ("wave1.avi 3", "../wave1.avi 1", "wave1.avi"):
        table.write_text(line + "\n")
        with pytest.raises(DataError, match=r"wave_test_split1\.txt: expected"):
            HMDB51(root)
    table.write_text("gone.avi 1\n")
    with pytest.raises(DataError, match=r"1 of 3 videos are not there, first .*gone\.avi"):
        HMDB51(root)


def test_kinetics_tolerates_missing_videos_with_a_count(tmp_path: Path) -> None:
    root = write_kinetics(tmp_path)
    with pytest.warns(UserWarning, match="1 of 3 videos of the split train are not there"):
        train = Kinetics(root, "train")
    assert (len(train), train.missing) == (2, 1) and train.class_names == ["abseiling", "juggling balls"]
    assert [file.name for file in train.files] == ["-abc_000001_000011.mp4", "de_f_000120_000130.mp4"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        val = open_videos(root, "validation")
    # The class that the small split lacks keeps its number.
    assert val.class_names == train.class_names and val.labels.tolist() == [1] and val.missing == 0
    with pytest.raises(DataError, match=r"no videos in the split test \(1 are listed, none is there\)"):
        Kinetics(root, "test")


def test_kinetics_refuses_wrong_tables(tmp_path: Path) -> None:
    root = write_kinetics(tmp_path)
    head = "label,youtube_id,time_start,time_end,split\n"
    for text in (head + "a,../../x,1,2,train\n", head + "a,x,one,2,train\n", head + ",x,1,2,train\n"):
        (root / "train.csv").write_text(text)
        with pytest.raises(DataError, match=r"train\.csv: expected a label"):
            Kinetics(root, "train")
    (root / "train.csv").write_text("label,id\na,b\n")
    with pytest.raises(DataError, match="lacks the column youtube_id and time_start"):
        Kinetics(root, "train")
    (root / "train.csv").write_text(head + "a,x\n")
    with pytest.raises(DataError, match="line 2 is incomplete"):
        Kinetics(root, "train")
    (root / "train.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        Kinetics(root, "train")


def test_layouts_are_told_apart(tmp_path: Path) -> None:
    assert type(open_videos(write_ucf101(tmp_path / "u", videos=False), "test")) is UCF101
    assert type(open_videos(write_hmdb51(tmp_path / "h"), "test")) is HMDB51
    assert type(open_videos(write_kinetics(tmp_path / "k"), "val")) is Kinetics
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no known layout"):
        open_videos(tmp_path / "none", "test")
    with pytest.raises(DataError, match="no such data"):
        open_videos(tmp_path / "absent", "test")
    with pytest.raises(ConfigError, match="dataset must be auto or one of"):
        open_videos(tmp_path, "test", "ucf")
