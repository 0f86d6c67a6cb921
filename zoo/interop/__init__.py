"""Models of this library inside other packages that do not share its licence; nothing is imported until asked for.

`to_ultralytics` puts a detector into ultralytics' own `YOLO` object, `from_ultralytics` gets it back. Ultralytics is
licensed under AGPL-3.0 (or a commercial licence of its makers); this library is Apache-2.0 and does not contain any of
it. A program that uses both is bound by the AGPL-3.0: whoever passes it on, or lets others use it over a network, has
to offer its whole source code.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from zoo.errors import ConfigError, MissingDependencyError

__all__ = ["from_ultralytics", "to_ultralytics"]

_LICENCE = "ultralytics is licensed under AGPL-3.0, which then binds the program that uses it"
# The typefaces that ultralytics draws and checks with, and otherwise downloads.
_FONTS = ("Arial.ttf", "Arial.Unicode.ttf")


def to_ultralytics(model: Any) -> Any:
    """A `YOLO` object of ultralytics that runs with a detector of this library.

    `predict`, `val`, `train`, `export`, `embed`, `save`, `info`, `fuse` and `to` are those of ultralytics:

        yolo = zoo.to_ultralytics(zoo.load("pape-vit-det-t-bccd"))
        boxes = yolo("photo.jpg")[0].boxes
        yolo.train(data="mine.yaml", epochs=20, imgsz=640)
        zoo.save(yolo.zoo_model, "mine")

    Pixels: ultralytics gives RGB from 0 to 1 in a grey letterbox; mean and std of the model's `data_config` are
    applied inside. The defaults are those of the model: its input size and number of detections, a full letterbox
    (`rect=False`), and the one-to-one branch without non-maximum suppression (`nms=False`; `nms=None` takes the
    one-to-many branch with it). A model that squashes pictures gets squashed ones in `predict`; `val` and `train` of
    ultralytics know letterboxes alone. It resizes with OpenCV, so that scores of a file differ a little from those of
    `zoo.predictor`; on the same input they are the same.

    Weights: `yolo.zoo_model` is the given model and shares its weights. `train` works on a copy, with the loss of
    YOLOv10 (ultralytics' implementation), and at its end puts the best weights into the given model, rounded to
    float16 as in ultralytics' files, along with the classes of the data set; rows of classes with the same name are
    kept. If it fails, the model stays as it was. Its `best.pt` and `last.pt` are pickles with our classes in them:
    `to_ultralytics("last.pt").train(resume=True)` goes on, `from_ultralytics("best.pt")` gives the model. With mixed
    precision it trains in bfloat16 (or float32 where the GPU has none): the float16 of ultralytics is preceded by a
    check that downloads a network of theirs.

    Side effects: importing ultralytics changes the process (it replaces `torch.save`, sets print options, threads of
    OpenCV and, where absent, `OMP_NUM_THREADS`). Unless it has been imported before, or `YOLO_CONFIG_DIR` and
    `YOLO_OFFLINE` are set, its settings live in a temporary folder that `YOLO_CONFIG_DIR` then names, and
    `YOLO_OFFLINE` keeps it off the network: no settings in the home folder, analytics, update check or font download.
    Its predictor, validator and trainer never send analytics for these objects. A data set or picture given as an
    address is still fetched, as told.

    Licence: ultralytics is AGPL-3.0 (see `zoo.interop`). It is not installed with this library, only by
    `pip install 'pape-zoo[interop]'`.

    Args:
        model: An image detector of this library, or the path of a .pt file that training such an object wrote. A .pt
            file is unpickled, which runs code in it: open those alone that you trust.

    Returns:
        An `ultralytics.YOLO` (a subclass) with `zoo_model`, the detector inside.

    Raises:
        MissingDependencyError: If ultralytics is not installed.
        ConfigError: If it is no such model.
        WeightsError: If the file holds another network, or cannot be read.
    """
    if isinstance(model, (str, os.PathLike)):
        return _glue().ZooYOLO.from_file(model)
    config = getattr(model, "config", None)
    kind = (config.get("modality"), config.get("task")) if isinstance(config, dict) else (None, None)
    if kind != ("image", "detection"):
        raise ConfigError(
            f"to_ultralytics takes an image detector of pape-zoo or the path of a .pt file, got {type(model).__name__}"
        )
    return _glue().ZooYOLO.from_model(model)


def from_ultralytics(source: Any) -> Any:
    """The detector of this library inside a `YOLO` object or a .pt file that `to_ultralytics` or its training made.

    Args:
        source: The object (it goes on sharing the weights), or the path of a .pt file. A .pt file is unpickled, which
            runs code in it: open those alone that you trust.

    Returns:
        The detector in eval mode, float32 from a file; for `zoo.save` and everything else. Its labels are those of the
        data set it was trained on last.

    Raises:
        MissingDependencyError: If ultralytics is not installed.
        ConfigError: If the object is no such thing.
        WeightsError: If the file holds another network, or cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        source = to_ultralytics(source)
    network = getattr(source, "model", None)
    detector = getattr(network, "zoo_model", None)
    if detector is None:
        raise ConfigError(
            f"from_ultralytics takes what to_ultralytics returned or a .pt file of its training, "
            f"got {type(source).__name__} without a model of pape-zoo"
        )
    return detector.eval()


def _glue() -> ModuleType:
    """The one module that imports ultralytics."""
    command = "pip install 'pape-zoo[interop]'"
    if "ultralytics" not in sys.modules:
        if importlib.util.find_spec("ultralytics") is None:
            raise MissingDependencyError(
                f"ultralytics is needed here and is not installed: {command}; note that {_LICENCE}"
            )
        _keep_quiet()
    try:
        return importlib.import_module("zoo.interop.ultralytics")
    except ImportError as error:
        raise MissingDependencyError(
            f"ultralytics cannot be imported ({error}): {command}; note that {_LICENCE}"
        ) from error


def _keep_quiet() -> None:
    """Gives ultralytics a settings folder that ends with this process, and no network, unless the user has chosen.

    In the environment, since worker processes of its training import it afresh.
    """
    os.environ.setdefault("YOLO_OFFLINE", "true")
    if "YOLO_CONFIG_DIR" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="pape-zoo-ultralytics-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["YOLO_CONFIG_DIR"] = str(folder)
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin:
        font = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if font.is_file():
            (folder / "Ultralytics").mkdir()
            for name in _FONTS:
                shutil.copyfile(font, folder / "Ultralytics" / name)
