"""What predictions look like to users: one object per picture, with ways to print, plot, save and tabulate it."""

from __future__ import annotations

import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from zoo.errors import DataError, ZooError, require
from zoo.files import write_whole

if TYPE_CHECKING:
    import pandas
    import PIL.Image

__all__ = ["TIME_COLUMNS", "ClassificationResults", "Failure", "Picture", "PictureResults", "fit", "free_path"]
__all__ += ["one_line", "save_picture"]

TIME_COLUMNS = ("start_us", "end_us")
_LONGEST = 1024  # of an annotated picture, in pixels
_NARROWEST = 320


@dataclass(frozen=True, eq=False)
class Failure:
    """A source that could not be read.

    Attributes:
        name: The source, as the user wrote it.
        error: Why; its message names the source too.
    """

    name: str
    error: ZooError


class Picture(Protocol):
    """What is drawn on: a picture, or events as one."""

    def to_pil(self) -> PIL.Image.Image:
        """Returns the picture as a PIL image."""


class PictureResults(ABC):
    """What the results of every task have in common.

    Subclasses are dataclasses with the fields declared here, name their columns and make `to_dict`, `rows` and `plot`.
    """

    name: str
    path: Path | None
    size: tuple[int, int]
    truncated: bool
    # Reads the picture again when it is wanted: results of a folder must not hold all its pixels.
    _picture: Callable[[], Picture] | None
    time_us: tuple[int, int] | None

    COLUMNS: ClassVar[tuple[str, ...]] = ()
    SUFFIXES: ClassVar[tuple[str, ...]] = (".png", ".jpg", ".webp")
    """Of the files that `save` writes, the usual one first."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""

    @abstractmethod
    def rows(self) -> list[tuple[Any, ...]]:
        """Returns tuples of `columns`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of what `rows` gives: `COLUMNS`, and of a recording start and end of the time seen."""
        return self.COLUMNS if self.time_us is None else (*self.COLUMNS, *TIME_COLUMNS)

    def times(self) -> dict[str, int]:
        """Returns start_us and end_us, when the events seen start and end; of pictures nothing."""
        return {} if self.time_us is None else dict(zip(TIME_COLUMNS, self.time_us, strict=True))

    @abstractmethod
    def draw_on(self, picture: PIL.Image.Image) -> PIL.Image.Image:
        """Returns a copy of a picture, or of an enlarged one, with the results on it."""

    def plot(self) -> PIL.Image.Image:
        """Returns the picture (its long side made 320 to 1,024 pixels) with the results on it.

        Raises:
            DataError: If the picture is no longer there.
        """
        return self.draw_on(fit(self._read_picture()))

    def to_json(self, indent: int | None = None) -> str:
        """Returns `to_dict` as JSON text."""
        # Names of files need not be valid text on Unix: escapes are valid JSON whatever they hold.
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns `rows` as a table with the columns `columns`.

        Raises:
            MissingDependencyError: If pandas is not installed.
        """
        return require("pandas", "viz").DataFrame(self.rows(), columns=list(self.columns))

    def save(self, path: str | Path) -> Path:
        """Writes `plot()` to a file, by its suffix (.png, .jpg, .webp), and returns the path; folders are made.

        The one result of a whole recording also makes a video, `.mp4`; `Predictor.video` makes one of many results.

        Raises:
            DataError: If it cannot be written.
            MissingDependencyError: If a video is wanted and PyAV is not installed.
        """
        path = Path(path).expanduser()
        if path.suffix.lower() == ".mp4":
            if (save_video := getattr(self._picture, "save_video", None)) is None:
                raise DataError(f"{path}: a video is made of an event recording; use .png, .jpg or .webp for a picture")
            save_video(self, path)
            return path
        return save_picture(self.plot, path)

    def _heading(self) -> str:
        height, width = self.size
        span = "" if self.time_us is None else ", {:.3f} to {:.3f} s".format(*(t / 1e6 for t in self.time_us))
        return f"{one_line(self.name)} ({width} x {height}{span}{', truncated' if self.truncated else ''})"

    def _about(self) -> dict[str, Any]:
        about = {
            "source": self.name,
            "path": None if self.path is None else str(self.path),
            "width": self.size[1],
            "height": self.size[0],
            "truncated": self.truncated,
        }
        return about | self.times()

    def _read_picture(self) -> PIL.Image.Image:
        if self._picture is None:
            raise DataError(f"{self.name}: these results hold no picture to draw on")
        return self._picture().to_pil()


@dataclass(frozen=True, eq=False)
class ClassificationResults(PictureResults):
    """The best classes of one picture, best first.

    Attributes:
        name: The source, as it was given.
        path: The file, if it came from one.
        indices: Class indices.
        labels: Class names; the index as text where the model has no names.
        scores: Softmax probabilities over all classes, in 0..1.
        size: (height, width) of the picture in pixels.
        truncated: True when only a part of the file could be decoded.
        time_us: Of a recording: when the events seen start and end, in microseconds of its clock.
    """

    name: str
    path: Path | None
    indices: tuple[int, ...]
    labels: tuple[str, ...]
    scores: tuple[float, ...]
    size: tuple[int, int]
    truncated: bool = False
    _picture: Callable[[], Picture] | None = field(default=None, repr=False)
    time_us: tuple[int, int] | None = None

    COLUMNS: ClassVar[tuple[str, ...]] = ("source", "rank", "index", "label", "score")

    @property
    def label(self) -> str:
        """The best class."""
        return self.labels[0]

    @property
    def score(self) -> float:
        """The probability of the best class."""
        return self.scores[0]

    def __str__(self) -> str:
        labels = [one_line(label) for label in self.labels]
        column = max(map(len, labels))
        lines = [self._heading()]
        for label, score in zip(labels, self.scores, strict=True):
            lines.append(f"  {100 * score:5.1f} %  {label:<{column}}  {'█' * round(20 * score)}".rstrip())
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: source, path, width, height, truncated and the list of predictions."""
        return self._about() | {
            "predictions": [
                {"index": index, "label": label, "score": score}
                for index, label, score in zip(self.indices, self.labels, self.scores, strict=True)
            ],
        }

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns (source, rank, index, label, score) for each class, the rows of `to_pandas` and of `--csv`."""
        ranked = zip(self.indices, self.labels, self.scores, strict=True)
        return [(self.name, rank, *values, *(self.time_us or ())) for rank, values in enumerate(ranked, start=1)]

    def draw_on(self, picture: PIL.Image.Image) -> PIL.Image.Image:
        """Returns the picture with labels and scores below it."""
        return _annotate(picture, self.labels, self.scores)


def save_picture(picture: Callable[[], PIL.Image.Image] | PIL.Image.Image, path: str | Path) -> Path:
    """Writes a picture by the suffix of the file (.png, .jpg, .webp), whole or not at all; folders are made.

    Args:
        picture: The picture, or what makes it once the suffix is known to be usable.
        path: Where to.

    Returns:
        The path.

    Raises:
        DataError: If it cannot be written.
    """
    import PIL.Image

    path = Path(path).expanduser()
    form = PIL.Image.registered_extensions().get(path.suffix.lower())
    if form not in PIL.Image.SAVE:
        raise DataError(f"{path}: no picture format for the suffix {path.suffix!r}; use .png, .jpg or .webp")
    made, buffer = picture if isinstance(picture, PIL.Image.Image) else picture(), io.BytesIO()
    try:
        made.save(buffer, form)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, buffer.getvalue())
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name.
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be written ({reason})") from error
    return path


def one_line(text: str) -> str:
    """Returns text fit for a line of a terminal: names of files and classes may hold line ends or escape codes."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def free_path(folder: Path, name: str, suffix: str = ".png") -> Path:
    """Returns a path in `folder` where nothing is yet, named after a source: `cat.png`, `cat-2.png`, ..."""
    stem = name.split("?")[0].rstrip("/").rpartition("/")[2] if "://" in name else Path(name).name
    stem = Path(stem).stem
    stem = (
        "".join(letter if letter.isalnum() or letter in "-_. " else "_" for letter in stem).strip(". ")[:100]
        or "picture"
    )
    path, number = folder / f"{stem}{suffix}", 2
    while path.exists() or path.is_symlink():
        path, number = folder / f"{stem}-{number}{suffix}", number + 1
    return path


def fit(picture: PIL.Image.Image) -> PIL.Image.Image:
    """The picture, or a resized one, so that its long side is 320 to 1,024 pixels."""
    longest = max(picture.size)
    if _NARROWEST <= longest <= _LONGEST:
        return picture
    scale = (_LONGEST if longest > _LONGEST else _NARROWEST) / longest
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))


def _annotate(picture: PIL.Image.Image, labels: tuple[str, ...], scores: tuple[float, ...]) -> PIL.Image.Image:
    """Puts a panel with one line and bar per class below a picture."""
    from PIL import Image, ImageDraw, ImageFont

    width = max(picture.width, _NARROWEST)
    text_size = max(12, width // 32)
    font = ImageFont.load_default(text_size)
    line, margin = math.ceil(1.6 * text_size), text_size
    panel = line * len(labels) + margin
    sheet = Image.new("RGB", (width, picture.height + panel), "white")
    sheet.paste(picture, ((width - picture.width) // 2, 0))
    draw = ImageDraw.Draw(sheet)
    for row, (label, score) in enumerate(zip(map(one_line, labels), scores, strict=True)):
        top = picture.height + margin // 2 + row * line
        bar = round((width - 2 * margin) * score)
        draw.rectangle(
            (margin, top, margin + bar, top + line - 3), fill=(176, 208, 255) if row == 0 else (222, 230, 240)
        )
        middle = top + (line - 3) // 2
        text = f"{100 * score:.1f} %"
        room = width - 3 * margin - draw.textlength(text, font) - margin
        while len(label) > 1 and draw.textlength(label, font) > room:
            label = label[:-2].rstrip() + "…"
        draw.text((margin + 4, middle), label, fill="black", font=font, anchor="lm")
        draw.text((width - margin - 4, middle), text, fill="black", font=font, anchor="rm")
    return sheet
