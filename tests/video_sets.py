"""Tiny data sets in the official layouts of UCF101, HMDB51 and Kinetics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from video_files import write_video

UCF_CLASSES = ("ApplyEyeMakeup", "YoYo")
GROUPS = (1, 2, 3, 4)


def moving(label: int, seed: int, count: int = 12, size: tuple[int, int] = (48, 64)) -> np.ndarray:
    """uint8 (count, H, W, 3): class 0 gets darker, class 1 brighter, on noise."""
    rng = np.random.default_rng(seed)
    level = np.linspace(200, 40, count) if label == 0 else np.linspace(40, 200, count)
    noise = rng.integers(0, 20, (count, *size, 3))
    return (level[:, None, None, None] + noise).astype(np.uint8)


def write_ucf101(root: Path, *, videos: bool = True) -> Path:
    """Two classes of four groups of two videos; fold k tests group k. Without `videos` the files are empty."""
    lists = root / "ucfTrainTestlist"
    lists.mkdir(parents=True)
    (lists / "classInd.txt").write_text("".join(f"{i} {label}\r\n" for i, label in enumerate(UCF_CLASSES, start=1)))
    names = []
    for label, name in enumerate(UCF_CLASSES):
        for group in GROUPS:
            for part in (1, 2):
                file = f"{name}/v_{name}_g{group:02}_c{part:02}.avi"
                path = root / "UCF-101" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                if videos:
                    write_video(path, pixels=moving(label, 10 * group + part))
                else:
                    path.touch()
                names.append((label + 1, group, file))
    for fold in (1, 2, 3):
        train = [f"{file} {label}\n" for label, group, file in names if group != fold]
        test = [f"{file}\n" for _, group, file in names if group == fold]
        (lists / f"trainlist0{fold}.txt").write_text("".join(train))
        (lists / f"testlist0{fold}.txt").write_text("".join(test))
    return root


def write_hmdb51(root: Path) -> Path:
    """Two classes; of the files there is nothing but their names."""
    roles = {
        "brush_hair": {"a brush (1).avi": 1, "b.avi": 1, "c.avi": 0},
        "wave": {"wave1.avi": 1, "wave2.avi": 2},
    }
    splits = root / "testTrainMulti_7030_splits"
    splits.mkdir(parents=True)
    for label, files in roles.items():
        (root / label).mkdir()
        for file in files:
            (root / label / file).touch()
        for fold in (1, 2, 3):
            text = "".join(f"{file} {role} \n" for file, role in files.items())
            (splits / f"{label}_test_split{fold}.txt").write_text(text)
    return root


def write_kinetics(root: Path) -> Path:
    """Two classes; one training video and the test video are gone."""
    head = "label,youtube_id,time_start,time_end,split\n"
    tables = {
        "train": "abseiling,-abc,1,11,train\njuggling balls,de_f,120,130,train\nabseiling,gone,0,10,train\n",
        "val": "juggling balls,ghi,7,17,validate\n",
        "test": "abseiling,jkl,7,17,test\n",
    }
    root.mkdir(parents=True, exist_ok=True)
    for split, text in tables.items():
        (root / f"{split}.csv").write_text(head + text)
    for file in (
        "train/-abc_000001_000011.mp4",
        "train/juggling balls/de_f_000120_000130.mp4",
        "val/ghi_000007_000017.mp4",
    ):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root
