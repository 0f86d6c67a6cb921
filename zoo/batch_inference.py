"""Predictions on millions of files with Ray Data: one row for each file, written as Parquet.

    from zoo.batch_inference import predict_files
    predict_files("pictures/", "pape-vit-t-imagenette", "predictions")

On a cluster: `ray.init("auto")` before, and files at a path or an address that all machines see.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import ConfigError, DataError, ZooError, require
from zoo.files import write_whole
from zoo.results import one_line

if TYPE_CHECKING:
    import pyarrow

__all__ = ["RowPredictor", "predict_files", "row_schema"]

_TASKS = ("classification", "detection")
_SETTINGS = "_settings.json"  # readers of Parquet folders pass over names that begin so
_BLOCK_ROWS = 4096  # what is handed to a worker at once, and written as one file
Row = dict[str, Any]


def row_schema() -> pyarrow.Schema:
    """Columns of the rows.

    `source`; `width` and `height` of the picture in pixels; `indices`, `labels` and `scores`, lists with the best
    first; `boxes`, of detectors a list of x1, y1, x2, y2 in pixels, else null; `error`, null where the file could be
    read, and otherwise why not, with null in the others.
    """
    pa = require("pyarrow", extra="data")
    return pa.schema(
        [
            ("source", pa.string()),
            ("width", pa.int32()),
            ("height", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("labels", pa.list_(pa.string())),
            ("scores", pa.list_(pa.float32())),
            ("boxes", pa.list_(pa.list_(pa.float32()))),
            ("error", pa.string()),
        ]
    )


class RowPredictor:
    """Turns a table of sources into a table of rows; each worker makes one, which loads the model once.

    Args:
        model: Name of an image classifier or detector, as for `zoo.predictor`.
        batch_size: Pictures of a forward pass.
        **options: Of `zoo.predictor`: `size`, `top_k`, `min_score`, `device`, `dtype`, ...
    """

    def __init__(self, model: str, *, batch_size: int = 32, **options: Any) -> None:
        import zoo

        _check_model(model)
        self.predictor, self.batch_size = zoo.predictor(model, **options), batch_size

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        """Predicts a batch.

        Args:
            table: With a column `source` of text: paths or http(s) addresses of single pictures.

        Returns:
            As many rows, in the same order; see `row_schema`. A source that cannot be read or predicted is a row with
            an `error`, and costs no other.
        """
        pa = require("pyarrow", extra="data")
        return pa.Table.from_pylist(self.rows(table.column("source").to_pylist()), schema=row_schema())

    def rows(self, sources: list[str]) -> list[Row]:
        """The rows of sources, as `__call__` has them."""
        from zoo.reading import as_source

        try:
            # Each as the one thing that it names: a folder would give several results, and shift those of the others.
            singles = [as_source(source) for source in sources]
            results = iter(self.predictor(singles, batch_size=self.batch_size, on_error="skip"))
        except (ZooError, OSError) as error:
            if len(sources) == 1:
                return [_failed(sources[0], error)]
            return [row for source in sources for row in self.rows([source])]
        failed = {failure.name: failure.error for failure in self.predictor.failures}
        rows = [_failed(s, failed[s]) if s in failed else _row(s, next(results)) for s in sources]
        if next(results, None) is not None:
            raise RuntimeError("there are more results than sources")
        return rows


def predict_files(
    sources: str | Path | Iterable[str | Path],
    model: str,
    out: str | Path,
    *,
    batch_size: int = 32,
    workers: int | None = None,
    gpus: float = 0,
    **options: Any,
) -> dict[str, int]:
    """Predicts many files with Ray Data and writes the rows (see `row_schema`) as Parquet files.

    The same call goes on where an earlier one was interrupted: sources that have a row are not predicted again.

    Args:
        sources: A folder, a pattern, or paths and http(s) addresses of pictures; one that occurs again counts once.
        model: Name of an image classifier or detector.
        out: Folder for the Parquet files: new, empty, or that of an earlier call with the same model and options.
        batch_size: Pictures of a forward pass.
        workers: Processes with a model each; `None` = one for each GPU, or for each two CPUs of the cluster.
        gpus: GPUs of a worker, such as 1; 0 = the CPU.
        **options: Of `zoo.predictor`.

    Returns:
        `{"files": ..., "failed": ...}`.

    Raises:
        ConfigError: If the model is for other data, or the folder holds something else.
        DataError: If there are no sources.
        MissingDependencyError: If Ray is not installed.
    """
    ray: Any = require("ray.data", extra="ray") and require("ray", extra="ray")
    pa = require("pyarrow", extra="data")
    parquet = require("pyarrow.dataset", extra="data")
    _check_model(model)
    folder, names = Path(out).resolve(), _listed(sources)
    _claim(folder, {"model": _absolute(model), **options})
    done = _finished(folder)
    table = pa.table({"source": pa.array([name for name in names if name not in done], pa.string())})
    if len(table):
        _predict(ray, table, folder, _absolute(model), batch_size, workers, gpus, options)
    written = parquet.dataset(folder, format="parquet", schema=row_schema())
    files, failed = written.count_rows(), written.count_rows(filter=~parquet.field("error").is_null())
    if files != len(done) + len(table):
        raise DataError(f"{out}: has {files} rows for {len(done) + len(table)} sources; delete it and run again")
    return {"files": files, "failed": failed}


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Notes in a folder what its rows are made by; refuses one that holds rows of another making, or something else."""
    note, text = folder / _SETTINGS, json.dumps(settings, indent=1, sort_keys=True, default=str)
    if note.is_file():
        if note.read_text(encoding="utf-8") != text:
            raise ConfigError(f"{folder}: its rows are of another model or other options, see {_SETTINGS} in it")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already: choose a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(note, text)


def _finished(folder: Path) -> set[str]:
    """Sources that have a row; what a killed worker had not finished writing is removed."""
    import pyarrow
    import pyarrow.parquet as pq

    done: set[str] = set()
    for path in sorted(folder.glob("*.parquet")):
        try:
            done.update(pq.read_table(path, columns=["source"], schema=row_schema()).column("source").to_pylist())
        except (pyarrow.ArrowException, OSError):
            warnings.warn(f"{path.name}: not complete, removed", stacklevel=3)
            path.unlink()
    return done


def _predict(
    ray: Any,
    table: pyarrow.Table,
    folder: Path,
    model: str,
    batch_size: int,
    workers: int | None,
    gpus: float,
    options: dict[str, Any],
) -> None:
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    resources = ray.cluster_resources()
    if gpus > resources.get("GPU", 0):
        raise ConfigError(f"gpus {gpus:g}: Ray sees {resources.get('GPU', 0):g} GPUs")
    share = resources.get("GPU", 0) / gpus if gpus else resources.get("CPU", 1) / 2
    blocks = -(-len(table) // _BLOCK_ROWS)
    count = workers or max(1, min(int(share), blocks))
    device = "cuda" if gpus else "cpu"
    (
        ray.data.from_arrow([table.slice(start, _BLOCK_ROWS) for start in range(0, len(table), _BLOCK_ROWS)])
        .map_batches(
            RowPredictor,
            fn_constructor_args=(model,),
            fn_constructor_kwargs={"batch_size": batch_size, "device": device, **options},
            batch_format="pyarrow",
            batch_size=_BLOCK_ROWS,
            compute=ray.data.ActorPoolStrategy(size=count),
            num_gpus=gpus or None,
        )
        .write_parquet(str(folder))
    )


def _listed(sources: str | Path | Iterable[str | Path]) -> list[str]:
    from zoo.reading import expand, is_url

    if isinstance(sources, (str, Path)):
        if is_url(sources):
            return [str(sources)]
        # Absolute, since workers run in folders of their own.
        return [os.path.abspath(source.name) for source in expand(str(sources), kind="image")]
    found = list(dict.fromkeys(str(s) if is_url(s) else os.path.abspath(s) for s in sources))
    if not found:
        raise DataError("no sources to predict")
    return found


def _absolute(model: str) -> str:
    """A name that means the same in workers, whatever their working directory is."""
    scheme = "local-dir:"
    return scheme + os.path.abspath(model.removeprefix(scheme)) if model.startswith(scheme) else model


def _check_model(model: str) -> None:
    from zoo.sources import locate

    config = locate(model, pretrained=False).config
    if config["modality"] != "image" or config["task"] not in _TASKS:
        raise ConfigError(
            f"{model}: rows are for image {' and '.join(_TASKS)}, not {config['modality']} {config['task']}"
        )


def _failed(source: str, error: Exception) -> Row:
    return {"source": source, "error": one_line(str(error)) or type(error).__name__}


def _row(source: str, result: Any) -> Row:
    boxes = getattr(result, "boxes", None)
    return {
        "source": source,
        "width": result.size[1],
        "height": result.size[0],
        "indices": list(result.indices),
        "labels": list(result.labels),
        "scores": list(result.scores),
        "boxes": None if boxes is None else [list(box) for box in boxes],
        "error": None,
    }
