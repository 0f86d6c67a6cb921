"""`zoo predict`: classify pictures, videos, events and clouds, label points, detect objects, continue sequences."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from zoo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from zoo.predict import Predictor
    from zoo.progress import Update
    from zoo.reading import Source
    from zoo.results import Failure, PictureResults

__all__ = ["predict"]

_FEW = 3  # sources without a progress bar
_EXIT_SOME_FAILED = 2


def predict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Model: a name of `zoo list`, hf-hub:org/repo or local-dir:FOLDER; or a file of"
            " zoo export, FILE.onnx or trusted:FILE.pt2.",
        ),
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Files, folders, patterns, http(s) URLs; - is standard input. Of decoders a prompt: the text itself, "
            "or a file .txt, .fa, .mid or .npz; models of music need none.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Of image models: side of the input in pixels; by default as trained. "
            "Of models of clouds: points seen at once, of larger clouds in overlapping crops or thinned out."
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Classes per result, by default 5; of a detector boxes, by default all; of a decoder the likeliest "
            "tokens that are drawn from, by default all."
        ),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(help="Of a detector: leave out boxes with a smaller score; by default 0.25.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Of a decoder: new tokens, at most; by default 200 of text and DNA, 512 of a chorale (32 quarter "
            "notes), of made-up questions an answer."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Of a decoder: logits are divided by it, by default 1; 0 takes the likeliest token always."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of a decoder: that of the draws, by default 0.")] = None,
    batch_size: Annotated[
        int, typer.Option(help="Pictures, windows of videos and recordings, or clouds at a time.")
    ] = 32,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default the CPU.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; by default float32.")] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print a JSON array: an object per picture, video (with its windows) or window of a recording.",
        ),
    ] = False,
    as_csv: Annotated[
        bool,
        typer.Option(
            "--csv",
            help="Print CSV: source, rank, index, label, score; of detectors a row per box with x1, y1, x2, y2 in "
            "pixels, around a car in metres and radians; of videos and recordings also start_us and end_us of the "
            "window, in microseconds of their clock; "
            "of models that label points a row per class that occurs, with its points; of decoders a row per text, "
            "or per 16th note of a chorale.",
        ),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder for an annotated picture per source (of a video, frames and the classes over time), of event "
            "models a video per recording (NAME.mp4); or a "
            "file .mp4 for the video of one recording. A video that is interrupted or fails leaves no file. Of models "
            "that label points a cloud per source, LAS and LAZ with the classes as their classification, others .ply; "
            "or a file .ply, .las, .laz, .npz, .html or .png for one. Of driving models a picture per key frame "
            "(cameras and bird's-eye view) and submission.json in the format of nuScenes, with all boxes whatever "
            "their score; or a file .json for that alone, or .png for one key frame. Of decoders a file per prompt "
            "(.txt, .fa, .mid), or for one a file .txt, .fa, .json, of chorales .mid, .npz, or .html for a page that "
            "plays it.",
        ),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(help="Of a video: frames per second, one per result; by default in real time.")
    ] = None,
    window_ms: Annotated[
        float | None,
        typer.Option(
            "--window-ms", help="Of a video: milliseconds of events in a frame; by default those since the last result."
        ),
    ] = None,
    frame: Annotated[int | None, typer.Option(help="Frame of animations, from 0; by default the first.")] = None,
    stride_ms: Annotated[
        float | None,
        typer.Option(
            "--stride-ms",
            help="Of event models: one result every so many milliseconds of a recording; of video models: from one "
            "window to the next, by default as long as a window.",
        ),
    ] = None,
    errors: Annotated[
        str | None,
        typer.Option(
            help="Truncated files: raise, or keep what can be decoded; by default raise, but of videos keep and warn. "
            "Of driving models keep goes on without missing files and damaged pictures."
        ),
    ] = None,
    fill: Annotated[
        bool,
        typer.Option("--fill", help="Of point models: take neutral values for features that a file does not have."),
    ] = False,
    unit: Annotated[
        float | None,
        typer.Option(help="Of point models: the unit of the files in that of the model, as 0.3048 for feet."),
    ] = None,
    dataroot: Annotated[
        str | None,
        typer.Option(help="Of driving models, instead of SOURCE: the root of a data set in the format of nuScenes."),
    ] = None,
    sample: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN", help="Of a data set: the key frame; repeat for several. By default all."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of a data set: its key frames of this split, as val.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Of a data set: at most so many key frames.")] = None,
    version: Annotated[
        str | None, typer.Option(help="Of a data set: the folder of tables, as v1.0-mini, where there are several.")
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Of a data set: --save draws the labelled boxes too, in white.")
    ] = False,
    local_files_only: Annotated[bool, typer.Option("--local-files-only", help="Do not fetch weights.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar, nothing but results and errors.")
    ] = False,
) -> None:
    """Classify pictures, videos, event recordings or point clouds and print labels.

    With a detector, find objects and print boxes; with a segmenter, give every point of a cloud a class; with a driving
    model, find objects around the car: zoo predict NAME --dataroot DIR --sample TOKEN --save out/
    With a decoder, continue a prompt, or of music begin a piece: zoo predict NAME --save chorale.html

    A source that cannot be read gives an error line; the others still run, and the exit code is 2.
    """
    if as_json and as_csv:
        raise ConfigError("--json and --csv exclude each other")
    given: list[str | None] = [*(sources or []), *([] if dataroot is None else [dataroot])]
    if errors not in (None, "raise", "keep"):
        raise ConfigError(f"--errors must be raise or keep, not {errors!r}")

    import zoo
    from zoo.cli.saving import microseconds, saver_for
    from zoo.progress import progress_bar

    predictor = zoo.predictor(
        name,
        size=size,
        top_k=top_k,
        min_score=min_score,
        device=device,
        dtype=dtype,
        local_files_only=local_files_only or None,
    )
    if not given and predictor.kind != "sequence":
        raise ConfigError("nothing to predict: give SOURCE, or of a driving model --dataroot")
    choice = {"sample": sample or None, "split": split, "limit": limit, "version": version}
    choice = {option: value for option, value in choice.items() if value is not None}
    if predictor.kind != "driving" and (choice or truth or dataroot is not None):
        raise ConfigError("--dataroot, --sample, --split, --limit, --version and --truth are for driving models")
    options: dict[str, Any] = {"frame": frame}
    if predictor.kind == "events":
        options = {} if stride_ms is None else {"stride_us": microseconds(stride_ms, "--stride-ms")}
    elif predictor.kind == "clip":
        options = {} if stride_ms is None else {"stride_s": microseconds(stride_ms, "--stride-ms") / 1e6}
    elif stride_ms is not None:
        raise ConfigError("--stride-ms is for video and event models; pictures have no time")
    if predictor.kind == "points":
        options = {"fill": fill, "unit": 1.0 if unit is None else unit}
    elif fill or unit is not None:
        raise ConfigError("--fill and --unit are for point models")
    drawing = {"tokens": tokens, "temperature": temperature, "seed": seed}
    if predictor.kind == "sequence":
        if frame is not None:
            raise ConfigError("--frame is for pictures")
        options, given = drawing, given or [None]
    elif any(value is not None for value in drawing.values()):
        raise ConfigError("--tokens, --temperature and --seed are for decoders")
    if predictor.kind == "driving":
        options, choice = {"truth": truth}, choice | {"errors": errors}
    items, failed = _expand(given, predictor, choice)
    saver = saver_for(predictor, save, len(items) + failed, fps=fps, window_ms=window_ms)
    options |= {"batch_size": batch_size, "stream": True, "errors": errors, "on_error": "skip"}

    # While the bar is up it owns the terminal and sys.stdout goes through it, which a pipe or file must not.
    out = None if sys.stdout.isatty() else sys.stdout
    printer = _JsonPrinter(out) if as_json else _CsvPrinter(out, predictor.columns) if as_csv else _BlockPrinter(out)
    runs = saver.runs(items)
    # Sources are counted where each has one result; a recording has any number: what counts is how much of it is done.
    counted = predictor.kind != "events"
    few = predictor.kind in ("image", "points", "driving") and len(items) <= _FEW
    with progress_bar("predicting", len(items), quiet or few) as update, printer:
        if predictor.kind in ("clip", "sequence"):
            options["progress"] = _shared_progress(update, len(items))
        for before, run in enumerate(runs):
            results, reported = predictor(run, **options), 0
            with saver.start(run):
                for done, result in enumerate(results, start=1):
                    reported = _report(predictor.failures, reported)
                    printer(result)
                    saver.add(result)
                    if counted:
                        update(min(done + reported, len(items)), "")
                    else:
                        update(before + saver.done, _time(result))
                reported = _report(predictor.failures, reported)
                saver.finish(complete=not reported)
            failed += reported
    if not quiet and (summary := saver.summary()):
        print(summary, file=sys.stderr)
    if failed or saver.failed:
        raise typer.Exit(_EXIT_SOME_FAILED)


def _shared_progress(update: Update, count: int) -> Callable[[float], None]:
    """Moves the bar with the share of a source that is done, one after the other."""
    finished = 0

    def progress(share: float) -> None:
        nonlocal finished
        update(min(finished + share, count), "")
        finished += share >= 1

    return progress


def _report(failures: list[Failure], reported: int) -> int:
    """Prints the failures since the last report and returns how many there are."""
    from zoo.cli.saving import print_error

    for failure in failures[reported:]:
        print_error(failure.error)
    return len(failures)


def _time(result: PictureResults) -> str:
    return "" if result.time_us is None else f"at {result.time_us[1] / 1e6:.1f} s"


class _BlockPrinter(contextlib.AbstractContextManager["_BlockPrinter"]):
    """Prints a block of lines per picture."""

    encoding_errors = "replace"

    def __init__(self, out: TextIO | None) -> None:
        self.out = out
        self.count = 0
        if reconfigure := getattr(sys.stdout, "reconfigure", None):  # Names of files may not fit the encoding.
            reconfigure(errors=self.encoding_errors)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __call__(self, result: PictureResults) -> None:
        self.emit(result)
        self.count += 1

    def emit(self, result: PictureResults) -> None:
        print(("\n" if self.count else "") + str(result), file=self.out, flush=True)

    def close(self) -> None:
        pass


class _JsonPrinter(_BlockPrinter):
    """Prints a JSON array, one result a line; it is closed also when something fails midway."""

    def emit(self, result: PictureResults) -> None:
        print("," if self.count else "[", file=self.out)
        print(json.dumps(result.to_dict()), end="", file=self.out, flush=True)

    def close(self) -> None:
        print("\n]" if self.count else "[]", file=self.out, flush=True)


class _CsvPrinter(_BlockPrinter):
    """Prints a heading and a row per class or box."""

    encoding_errors = "backslashreplace"

    def __init__(self, out: TextIO | None, columns: tuple[str, ...]) -> None:
        super().__init__(out)
        self.columns = columns

    def __enter__(self) -> _CsvPrinter:
        self._write([self.columns])
        return self

    def emit(self, result: PictureResults) -> None:
        self._write(result.rows())

    def _write(self, rows: Iterable[tuple[Any, ...]]) -> None:
        csv.writer(self.out or sys.stdout, lineterminator="\n").writerows(rows)


def _expand(arguments: list[str | None], predictor: Predictor, choice: dict[str, Any]) -> tuple[list[Source], int]:
    """Expands the arguments into single sources; prints what cannot be and returns how many those were."""
    from zoo.cli.saving import print_error
    from zoo.reading import Source, read_bounded

    items: list[Source] = []
    failed = 0
    for argument in arguments:
        try:
            if argument == "-" and predictor.kind != "driving":
                items.append(Source(read_bounded(sys.stdin.buffer, "stdin"), "stdin"))
            else:
                items.extend(predictor.sources(argument, **choice))
        except DataError as error:
            print_error(error)
            failed += 1
    return items, failed
