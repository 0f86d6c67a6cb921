"""Checks that hold for data of every modality: classes, copies, files that cannot be read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from zoo.class_folders import class_folders, files_in, has_split, split_root
from zoo.errors import DataError
from zoo.finetune.report import Report
from zoo.progress import progress_bar

__all__ = ["Copies", "check_classes", "check_folders", "check_samples", "each", "report_names"]

T = TypeVar("T")
_CHUNK = 256


class Copies:
    """Finds files that are in a data set more than once, by the hash of their contents."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[str, str, Any]] = {}
        self._found: list[tuple[tuple[str, str, Any], tuple[str, str, Any]]] = []

    def add(self, split: str, name: str, label: Any, data: bytes) -> None:
        """Takes note of a sample.

        Args:
            split: `"train"` or `"val"`.
            name: For messages.
            label: Its class, or `None`.
            data: Its bytes.
        """
        own = (split, name, label)
        first = self._seen.setdefault(hashlib.sha256(data).digest(), own)
        if first is not own:
            self._found.append((first, own))

    def report(self, report: Report) -> None:
        """Copies between training and validation are errors (the metric would not be true), others notes."""
        for (split, name, label), (other_split, other, other_label) in self._found:
            pair = f"{other} = {name}"
            if split != other_split:
                report.error("samples both in training and in validation", pair)
            elif label != other_label:
                report.note("the same sample with two classes", pair)
            else:
                report.note("copies of samples within a split", pair)


def check_classes(report: Report, train: Mapping[str, int], val: Mapping[str, int] | None) -> None:
    """Checks the classes of a classifier.

    Args:
        report: Gets what is wrong.
        train: Samples of each class in training.
        val: The same of the validation split, if there is one.
    """
    if len(train) < 2:
        report.error("a classifier needs two classes or more, found", ", ".join(train) or "none")
    report_names(report, [*train, *(name for name in val or {} if name not in train)])
    for name in (name for name, count in train.items() if not count):
        report.error("classes without samples", name)
    if val is None:
        for name in (name for name, count in train.items() if count == 1):
            report.note("classes with one sample, of which none can be held out", name)
        if train and max(train.values()) < 2:
            report.error("nothing can be held out to validate on", "no class has two samples")
        return
    for name in (name for name, count in val.items() if count and not train.get(name)):
        report.error("classes in validation that are not in training", name)
    for name in (name for name, count in train.items() if count and not val.get(name)):
        report.note("classes of training that validation lacks", name)


def report_names(report: Report, names: Collection[str]) -> None:
    """Names that differ by case or blanks alone, and such that cannot be shown, are errors."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[" ".join(name.casefold().split())].append(name)
        if not 0 < len(name) <= 500 or not name.isprintable():
            report.error("names of classes that cannot be shown", repr(name))
    for same in alike.values():
        if len(same) > 1:
            report.error("names of classes that differ by case or blanks alone", ", ".join(map(repr, same)))


def each(items: Iterable[T], work: Callable[[T], Any], label: str, quiet: bool) -> Iterator[tuple[T, Any]]:
    """Items with what `work` gives for them, in order, made by several threads; a `DataError` is given and not raised.

    Args:
        items: What to work on; a few hundred are taken at a time.
        work: For one item.
        label: For the progress bar.
        quiet: Show none.
    """

    def safe(item: T) -> Any:
        try:
            return work(item)
        except DataError as error:
            return error

    source, done = iter(items), 0
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool, progress_bar(label, None, quiet) as update:
        while chunk := list(islice(source, _CHUNK)):
            for item, result in zip(chunk, pool.map(safe, chunk), strict=True):
                done += 1
                update(done, "")
                yield item, result


def check_folders(
    data: Path,
    report: Report,
    suffixes: Collection[str],
    read: Callable[[Path], Any],
    *,
    skip_bad: bool = False,
    quiet: bool = True,
) -> tuple[dict[str, Counter[str]], list[Any]]:
    """Checks a data set of class folders, reading every file of training and validation.

    Args:
        data: The folder.
        report: Gets what is wrong.
        suffixes: Of the files that are samples.
        read: Reads one; raises DataError if it cannot be used.
        skip_bad: Files that cannot be read are left out in training, so that they are no errors.
        quiet: Show no progress bar.

    Returns:
        For `"train"` and, where there is one, `"val"`: usable samples of each class; and what `read` gave for the
        training samples.
    """
    counts: dict[str, Counter[str]] = {}
    copies, results = Copies(), []
    bad = report.note if skip_bad else report.error
    for split in ("train", "val") if has_split(data, "val") else ("train",):
        root = split_root(data, split)
        if root is None:
            report.error("no training split", f"expected {data / 'train'}")
            continue
        own: Counter[str] = Counter()
        counts[split] = own
        loose = [f for f in sorted(root.iterdir()) if f.suffix.lower() in suffixes and f.is_file()]
        for file in loose:
            report.note("files without a class, outside of the class folders, that are not used", str(file))
        samples = []
        for folder in class_folders(root):
            own[folder.name] = 0
            files = files_in(folder, suffixes)
            samples += [(folder.name, file) for file in files]
            known = set(files)
            for other in sorted(p for p in folder.rglob("*") if p.is_file() and p not in known):
                if not other.name.startswith("."):
                    report.note("files of no known kind, that are not used", str(other))
        for (name, file), result in each(samples, lambda pair: _read(pair[1], read), f"checking {split}", quiet):
            if isinstance(result, DataError):
                bad("files that cannot be read", _reason(file, result))
                continue
            content, value = result
            copies.add(split, str(file), name, content)
            own[name] += 1
            if split == "train":
                results.append(value)
    copies.report(report)
    check_classes(report, counts.get("train", Counter()), counts.get("val"))
    return counts, results


def check_samples(
    report: Report, data: Any, read: Callable[[int], Any], skip_bad: bool = False, quiet: bool = True
) -> Counter[str]:
    """Reads every sample of a data set that has been opened.

    Args:
        report: Gets what is wrong.
        data: With a length, `class_names` and, of classification, `labels`.
        read: Reads the sample of a number; raises DataError if it cannot be used.
        skip_bad: Samples that cannot be read are no errors.
        quiet: Show no progress bar.

    Returns:
        Usable samples of each class; none for data without `labels`.
    """
    labels = getattr(data, "labels", None)
    counts = Counter({str(name): 0 for name in data.class_names} if labels is not None else {})
    for index, result in each(range(len(data)), read, f"checking {data.name}", quiet):
        if isinstance(result, DataError):
            (report.note if skip_bad else report.error)("samples that cannot be read", str(result))
        elif labels is not None:
            counts[str(data.class_names[labels[index]])] += 1
    return counts


def _read(file: Path, read: Callable[[Path], Any]) -> tuple[bytes, Any]:
    value = read(file)
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest(), value
    except OSError as error:
        raise DataError(f"cannot be read ({error})") from error


def _reason(file: Path, error: DataError) -> str:
    text = str(error)
    return text if str(file) in text else f"{file}: {text}"
