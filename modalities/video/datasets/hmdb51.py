"""HMDB51 (Kuehne et al. 2011): 6,766 videos of 51 actions, with three official splits."""

from __future__ import annotations

import os
from pathlib import Path

from modalities.video.datasets.base import VideoSet, check_fold, class_folders, read_lines, split_of
from zoo.errors import ConfigError, DataError

__all__ = ["LISTS", "HMDB51"]

LISTS = ("testTrainMulti_7030_splits", "test_train_splits/testTrainMulti_7030_splits", "splits")
_ROLES = {"train": "1", "test": "2"}


class HMDB51(VideoSet):
    """One split of HMDB51.

    The folder holds `<class>/*.avi` (also below `videos` or `hmdb51_org`) and
    `testTrainMulti_7030_splits/<class>_test_split{1,2,3}.txt`, whose lines end in 1 (train), 2 (test) or 0 (neither).
    There is no official validation split.

    Args:
        data: The folder.
        split: `"train"` or `"test"`.
        fold: Official split, 1 to 3.
        errors: See `VideoSet`.

    Raises:
        ConfigError: If there is no such split or fold.
        DataError: If files are absent, or lists wrong.
    """

    def __init__(
        self, data: str | os.PathLike[str], split: str = "train", *, fold: int = 1, errors: str | None = None
    ) -> None:
        root, split = Path(data).expanduser(), split_of(split)
        check_fold(fold)
        if split not in _ROLES:
            raise ConfigError("HMDB51 has no validation split: use train or test, or dev_count of a recipe")
        ending = f"_test_split{fold}.txt"
        tables = next((found for name in LISTS if (found := sorted((root / name).glob(f"*{ending}")))), [])
        if not tables:
            raise DataError(f"{root}: no testTrainMulti_7030_splits/<class>{ending}: the lists come apart")
        class_names = [table.name.removesuffix(ending) for table in tables]
        folder = class_folders(root, ("videos", "hmdb51_org", "hmdb51"), class_names, "HMDB51")
        videos = []
        for label, table in enumerate(tables):
            for line in read_lines(table):
                file, _, role = line.rpartition(" ")
                file = file.strip()
                if role not in ("0", "1", "2") or not file or Path(file).name != file:
                    raise DataError(f"{table}: expected '<file>.avi 0', 1 or 2, got {line!r:.80}")
                if role == _ROLES[split]:
                    videos.append((folder / class_names[label] / file, label))
        if absent := [file for file, _ in videos if not file.is_file()]:
            raise DataError(f"{root}: {len(absent)} of {len(videos)} videos are not there, first {absent[0]}")
        super().__init__("hmdb51", root, split, videos, class_names, tables, errors=errors)
