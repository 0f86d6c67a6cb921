"""UCF101 (Soomro et al. 2012): 13,320 videos of 101 actions, in 25 groups each, with three official splits."""

from __future__ import annotations

import os
import re
from pathlib import Path

from modalities.video.datasets.base import VideoSet, check_fold, class_folders, read_lines, split_of
from zoo.errors import DataError

__all__ = ["LISTS", "UCF101"]

LISTS = ("ucfTrainTestlist", "UCF101TrainTestSplits-RecognitionTask/ucfTrainTestlist", "splits", ".")
_NAME = re.compile(r"v_(?P<label>\w+)_g(?P<group>\d+)_c\d+\.\w+")


class UCF101(VideoSet):
    """One split of UCF101.

    The folder holds `UCF-101/<class>/v_<class>_gXX_cYY.avi` (or the class folders themselves) and
    `ucfTrainTestlist/{classInd,trainlist0k,testlist0k}.txt`. A group is footage of one scene, so it is never divided:
    the lists are checked for it, and the split `val` is the first group of each class of the training list, as with
    the released PaPE network. `train` is the rest, unless `validation` is false.

    Args:
        data: The folder.
        split: `"train"`, `"val"` or `"test"`.
        fold: Official split, 1 to 3.
        validation: Whether the validation groups are held out of `train`.
        errors: See `VideoSet`.

    Attributes:
        groups: Group of each video, such as `"YoYo g08"`.

    Raises:
        ConfigError: If there is no such split or fold.
        DataError: If files are absent, or lists wrong.
    """

    def __init__(
        self,
        data: str | os.PathLike[str],
        split: str = "train",
        *,
        fold: int = 1,
        validation: bool = True,
        errors: str | None = None,
    ) -> None:
        root, split = Path(data).expanduser(), split_of(split)
        check_fold(fold)
        lists = next((root / name for name in LISTS if (root / name / "classInd.txt").is_file()), None)
        if lists is None:
            raise DataError(f"{root}: no ucfTrainTestlist/classInd.txt: the lists of UCF101 come apart")
        tables = [lists / name for name in ("classInd.txt", f"trainlist0{fold}.txt", f"testlist0{fold}.txt")]
        class_names = _class_names(tables[0])
        folder = class_folders(root, ("UCF-101", "UCF101"), class_names, "UCF101")
        train, test = (_listed(table, class_names) for table in tables[1:])
        if both := sorted({group for _, group in train} & {group for _, group in test}):
            label, group = both[0]
            raise DataError(f"{tables[1]}: the group {label} g{group:02} is in the training and in the test list")
        held = _first_groups(train)
        if split == "test":
            chosen = test
        else:
            whole = split == "train" and not validation
            chosen = [pair for pair in train if whole or (pair[1] in held) == (split == "val")]
        videos = [(folder / file, class_names.index(group[0])) for file, group in chosen]
        if absent := [file for file, _ in videos if not file.is_file()]:
            raise DataError(f"{root}: {len(absent)} of {len(videos)} videos are not there, first {absent[0]}")
        self.groups = [f"{label} g{group:02}" for _, (label, group) in chosen]
        super().__init__("ucf101", root, split, videos, class_names, tables, errors=errors)


def _class_names(table: Path) -> list[str]:
    found: dict[int, str] = {}
    for line in read_lines(table):
        number, _, label = line.partition(" ")
        if not number.isdecimal() or not re.fullmatch(r"\w+", label.strip()):
            raise DataError(f"{table}: expected lines such as '1 ApplyEyeMakeup', got {line!r:.60}")
        found[int(number)] = label.strip()
    if sorted(found) != list(range(1, len(found) + 1)) or len(set(found.values())) != len(found):
        raise DataError(f"{table}: classes must be numbered from 1 without gaps, and differ")
    return [found[number] for number in sorted(found)]


def _listed(table: Path, class_names: list[str]) -> list[tuple[str, tuple[str, int]]]:
    """File and group, (class, number), of each line of a list."""
    known = set(class_names)
    found = []
    for line in read_lines(table):
        file = line.split(" ")[0]
        label, slash, name = file.partition("/")
        match = _NAME.fullmatch(name)
        # Names of files spell two classes otherwise (HandStandPushups), so the folder says which class it is.
        if not slash or label not in known or match is None:
            raise DataError(
                f"{table}: expected '<class>/v_<class>_gXX_cYY.avi' of a class of classInd.txt, got {line!r:.80}"
            )
        found.append((file, (label, int(match["group"]))))
    return found


def _first_groups(train: list[tuple[str, tuple[str, int]]]) -> set[tuple[str, int]]:
    """The group of each class with the lowest number."""
    first: dict[str, int] = {}
    for _, (label, group) in train:
        first[label] = min(group, first.get(label, group))
    return set(first.items())
