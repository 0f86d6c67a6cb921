"""What `zoo predict --save` writes: a picture per result, a video per recording, a submission, a text or a chorale."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import ConfigError, DataError, require

if TYPE_CHECKING:
    from zoo.predict import Predictor
    from zoo.reading import Source
    from zoo.results import PictureResults

__all__ = ["Saver", "print_error", "saver_for"]


class Saver(contextlib.AbstractContextManager["Saver"]):
    """Saves nothing; the base of those that do. Its body is the results of one run of the predictor.

    Attributes:
        saved: Files written.
        failed: Files that could not be written; each was told in an error line.
    """

    what = "file"
    where: Path | None = None

    def __init__(self) -> None:
        self.saved = self.failed = 0

    def runs(self, items: list[Source]) -> list[list[Source]]:
        """The sources of each run."""
        return [items]

    def start(self, items: list[Source]) -> Saver:
        """Begins a run."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Drops what an error or an interrupt left unfinished."""

    def add(self, result: PictureResults) -> None:
        """Takes a result."""

    def finish(self, complete: bool) -> None:
        """Ends a run, whose sources were read without an error when `complete`."""

    @property
    def done(self) -> float:
        """Share of the current source that is done, 0 to 1."""
        return 0.0

    def summary(self) -> str | None:
        """A line about what was written."""
        if not self.saved:
            return None
        return f"{self.saved} {self.what}{'s' if self.saved > 1 else ''} in {self.where}"


class _Results(Saver):
    """A file per result in a folder, an annotated picture, or the one file named."""

    what = "annotated picture"

    def __init__(self, target: Path, is_file: bool = False) -> None:
        super().__init__()
        self.where, self._is_file = target, is_file

    def suffix(self, result: PictureResults) -> str:
        """Of the file in the folder."""
        return ".png"

    def add(self, result: PictureResults) -> None:
        from zoo.results import free_path

        assert self.where is not None
        try:
            result.save(self.where if self._is_file else free_path(self.where, result.name, self.suffix(result)))
            self.saved += 1
        except DataError as error:
            print_error(error)
            self.failed += 1

    def summary(self) -> str | None:
        return f"saved: {self.where}" if self.saved and self._is_file else super().summary()


class _Clouds(_Results):
    """A labelled cloud per result in a folder, or the one file named."""

    what = "labelled cloud"

    def suffix(self, result: PictureResults) -> str:
        return str(result.suffix)  # type: ignore[attr-defined]


class _Sequences(_Clouds):
    """A continued sequence per prompt in a folder, or the one file named."""

    what = "continuation"


class _KeyFrames(_Results):
    """A picture per key frame and a submission of all of them, in a folder; or either as the one file named."""

    def __init__(self, target: Path, is_file: bool) -> None:
        super().__init__(target, is_file)
        self._pictures = not is_file or target.suffix.lower() != ".json"
        self._submission = not is_file or not self._pictures
        self._results: list[Any] = []
        self._written: Path | None = None

    def add(self, result: PictureResults) -> None:
        if self._pictures:
            super().add(result)
        if self._submission:
            self._results.append(result)

    def finish(self, complete: bool) -> None:
        from modalities.driving.results import save_submission
        from zoo.results import free_path

        assert self.where is not None
        if not self._results:
            return
        try:
            path = self.where if self._is_file else free_path(self.where, "submission", ".json")
            self._written = save_submission(self._results, path)
            self.saved += not self._pictures
        except DataError as error:
            print_error(error)
            self.failed += 1

    def summary(self) -> str | None:
        about = super().summary()
        return about if self._is_file or self._written is None else f"{about}, all boxes in {self._written.name}"


class _Videos(Saver):
    """A video per recording, in a folder or under the one name given."""

    what = "video"

    def __init__(self, predictor: Predictor, target: Path, is_file: bool, options: dict[str, Any]) -> None:
        super().__init__()
        self.where = target
        self._predictor, self._is_file, self._options = predictor, is_file, options
        self._video: Any = None

    def runs(self, items: list[Source]) -> list[list[Source]]:
        return [[item] for item in items]

    def start(self, items: list[Source]) -> Saver:
        from zoo.results import free_path

        assert self.where is not None
        path = self.where if self._is_file else free_path(self.where, items[0].name, ".mp4")
        video = self._predictor.video(path, **self._options)
        with self._told():
            self._video = video.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._video is not None:
            self._video.discard()
            self._video = None

    def add(self, result: PictureResults) -> None:
        if self._video is not None:
            with self._told():
                self._video.add(result)

    def finish(self, complete: bool) -> None:
        if self._video is not None and complete:
            with self._told():
                self._video.close()
                self.saved += 1

    @property
    def done(self) -> float:
        return 0.0 if self._video is None else float(self._video.done)

    def summary(self) -> str | None:
        return f"1 video: {self.where}" if self.saved and self._is_file else super().summary()

    @contextlib.contextmanager
    def _told(self) -> Any:
        """A video that cannot be made gives an error line; the results go on without it."""
        try:
            yield
        except DataError as error:
            print_error(error)
            self.failed += 1
            if self._video is not None:
                self._video.discard()
            self._video = None


def saver_for(
    predictor: Predictor, target: Path | None, sources: int, *, fps: float | None, window_ms: float | None
) -> Saver:
    """What saves the results.

    Args:
        predictor: Where they come from.
        target: A folder, made here, or an `.mp4` file; `None` saves nothing.
        sources: How many there are, also those that cannot be read.
        fps: Of a video.
        window_ms: Milliseconds of events in a frame of a video.

    Raises:
        ConfigError: If the model does not make this, or options do not go together.
        DataError: If the folder cannot be made.
    """
    events = predictor.kind == "events"
    if (fps is not None or window_ms is not None) and (target is None or not events):
        raise ConfigError("--fps and --window-ms are of videos: use an event model, and --save out.mp4 or a folder")
    if target is None:
        return Saver()
    if predictor.kind == "points":
        return _clouds(predictor.task == "segmentation", target, sources)
    if predictor.kind == "driving":
        return _key_frames(target, sources)
    if predictor.kind == "sequence":
        return _sequences(predictor.suffixes, target, sources)
    options: dict[str, Any] = {
        "fps": fps,
        "window_us": None if window_ms is None else microseconds(window_ms, "--window-ms"),
    }
    is_file = _is_file(target)
    if events or is_file:
        predictor.video(target if is_file else target / "any.mp4", **options)  # Says what is wrong before any work.
    if is_file and sources != 1:
        raise ConfigError(f"{target}: one video for {sources} recordings; pass a folder to --save for one each")
    if not is_file:
        _make_folder(target)
    return _Videos(predictor, target, is_file, options) if events else _Results(target)


_PICTURE_SUFFIXES = (".jpg", ".png", ".webp")


def _key_frames(target: Path, sources: int) -> Saver:
    """What saves results on driving scenes."""
    suffix = target.suffix.lower()
    is_file = suffix in (".json", *_PICTURE_SUFFIXES) and not target.is_dir()
    if is_file and suffix != ".json" and sources != 1:
        raise ConfigError(f"{target}: one picture for {sources} key frames; pass a folder to --save for one each")
    if not is_file:
        _make_folder(target)
    return _KeyFrames(target, is_file)


_CLOUD_SUFFIXES = (".html", ".jpg", ".las", ".laz", ".npz", ".ply", ".png", ".webp")
_OTHER_CLOUDS = (".bin", ".csv", ".json", ".off", ".pcd", ".txt", ".xyz")


def _clouds(segments: bool, target: Path, sources: int) -> Saver:
    """What saves results on clouds: segmented ones as clouds, drawn ones with their classes as .png."""
    allowed = _CLOUD_SUFFIXES if segments else _PICTURE_SUFFIXES
    is_file = target.suffix.lower() in (*_CLOUD_SUFFIXES, *_OTHER_CLOUDS) and not target.is_dir()
    if is_file and target.suffix.lower() not in allowed:
        raise ConfigError(
            f"{target}: results of a {'segmenter' if segments else 'classifier'} are written as {', '.join(allowed)}"
        )
    if is_file and sources != 1:
        raise ConfigError(f"{target}: one file for {sources} clouds; pass a folder to --save for one each")
    if not is_file:
        _make_folder(target)
    return _Clouds(target, is_file) if segments else _Results(target, is_file)


def _sequences(allowed: tuple[str, ...], target: Path, sources: int) -> Saver:
    """What saves continued sequences: whatever has a suffix is a file, unless it is a folder already."""
    suffix = target.suffix.lower()
    is_file = bool(suffix) and not target.is_dir()
    if is_file and suffix not in allowed:
        raise ConfigError(f"{target}: results of this model are written as {', '.join(allowed)}, or to a folder")
    if is_file and sources != 1:
        raise ConfigError(f"{target}: one file for {sources} prompts; pass a folder to --save for one each")
    if (suffix if is_file else allowed[0]) in (".mid", ".midi") or suffix == ".html":
        require("mido", "music")  # Says that it is missing before any work.
    if not is_file:
        _make_folder(target)
    return _Sequences(target, is_file)


def _make_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{target}: cannot be made a folder ({reason})") from error


def _is_file(target: Path) -> bool:
    """Whether a video is meant, not a folder; a folder may have any name but that of another kind of file."""
    from zoo.reading import IMAGE_SUFFIXES, VIDEO_SUFFIXES

    suffix = target.suffix.lower()
    with contextlib.suppress(OSError, ValueError):
        if target.is_dir():
            return False
    if suffix != ".mp4" and suffix in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES):
        raise ConfigError(f"{target}: --save takes a folder, or of one recording a video .mp4; not {target.suffix}")
    return suffix == ".mp4"


def microseconds(milliseconds: float, option: str) -> int:
    """Checks an option in milliseconds."""
    if not 0.001 <= milliseconds <= 1e9:
        raise ConfigError(f"{option} must be from 0.001 to 1e9, not {milliseconds}")
    return round(1000 * milliseconds)


def print_error(error: Exception) -> None:
    """Prints an error line."""
    from zoo.results import one_line

    print(f"error: {one_line(str(error))}", file=sys.stderr)
