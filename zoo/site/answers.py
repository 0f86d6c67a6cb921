"""Results of predictions as the plain values that the try-it panel shows."""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import DataError, MissingDependencyError
from zoo.results import PictureResults, fit, one_line

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["answer", "data_url"]

MOST_DOWNLOAD = 24 * 2**20
"""Larger files are not sent along: `zoo predict --save` writes them."""

# What browsers draw by themselves.
_SHOWN_BY_BROWSERS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM")
_TYPES = {".txt": "text/plain", ".json": "application/json", ".html": "text/html", ".mid": "audio/midi"}


def answer(result: Any, task: str, kind: str, body: bytes | None) -> dict[str, Any]:
    """What is shown of a result.

    Args:
        result: Of one source.
        task: Of the model.
        kind: What its sources are, see `zoo.predict.Predictor.kind`.
        body: The file, unless it was text.

    Returns:
        `kind`, `classes`, `boxes`, `width`, `height`, `picture`, `text`, `download` and `note`, all JSON-ready; of
        decoders also `page`, HTML that shows and plays the result, or `None`.
    """
    made: dict[str, Any] = {
        "kind": "classes",
        "classes": [],
        "boxes": [],
        "width": int(result.size[1]),
        "height": int(result.size[0]),
        "picture": None,
        "text": None,
        "download": None,
        "note": None,
    }
    if task == "generation":
        made |= {"kind": "text", "text": _text(result), "page": _page(result), **_download(result)}
    elif kind == "driving":
        made |= _scene(result)
    elif task == "segmentation":
        made |= _segments(result)
    elif task == "detection":
        made |= {"kind": "boxes", "boxes": _boxes(result), **_plain_picture(result, kind, body)}
    else:
        made |= {"classes": _classes(result.labels, result.scores), **_plain_picture(result, kind, body)}
    if result.truncated:
        made["note"] = _joined(made["note"], "only a part of the file could be read")
    return made


def data_url(content: bytes, kind: str) -> str:
    """Content as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


def _classes(labels: Any, scores: Any) -> list[dict[str, Any]]:
    found = zip(labels, scores, strict=True)
    return [{"label": one_line(str(label)), "score": float(score)} for label, score in found]


def _boxes(result: Any) -> list[dict[str, Any]]:
    keys = ("x1", "y1", "x2", "y2")
    return [
        {**dict(zip(keys, map(float, box), strict=True)), "label": one_line(label), "score": float(score)}
        for box, label, score in zip(result.boxes, result.labels, result.scores, strict=True)
    ]


def _text(result: Any) -> str:
    whole = getattr(result, "whole_text", None)
    return str(result.shown() if whole is None else whole)


def _page(result: Any) -> str | None:
    """The page that a result is saved as, where it has one and what makes it is installed."""
    if ".html" not in type(result).SUFFIXES:
        return None
    try:
        return str(result.data(".html").decode())
    except (DataError, MissingDependencyError):
        return None


def _scene(result: Any) -> dict[str, Any]:
    """Boxes in space have no corners in a picture: they are drawn, and listed by where they are."""
    places = [f"{x:.1f} m ahead, {y:.1f} m to the left" for x, y, _ in result.boxes.centre.tolist()]
    labels = [f"{label}, {place}" for label, place in zip(result.labels, places, strict=True)]
    picture = result.plot()
    return {
        "kind": "scene",
        "classes": _classes(labels, result.scores),
        "width": picture.width,
        "height": picture.height,
        "picture": _encoded(picture, "JPEG"),
        **_download(result, ".json"),
    }


def _segments(result: Any) -> dict[str, Any]:
    """The share of the points that each class has, and the cloud in the colours of the classes."""
    rows = result.rows()
    made: dict[str, Any] = {"kind": "points", "classes": _classes([row[2] for row in rows], [row[4] for row in rows])}
    made |= {"note": f"the shares of {result.count:,} points", **_download(result, result.suffix)}
    try:
        picture = result.plot()
    except MissingDependencyError as error:
        return made | {"note": _joined(made["note"], f"no picture: {error}")}
    return made | {"picture": _encoded(picture, "PNG"), "width": picture.width, "height": picture.height}


def _plain_picture(result: PictureResults, kind: str, body: bytes | None) -> dict[str, Any]:
    """The picture without anything drawn on it, where the browser cannot show the file itself."""
    if kind == "image" and body is not None:
        if body.startswith(_SHOWN_BY_BROWSERS) or (body[:4] == b"RIFF" and body[8:12] == b"WEBP"):
            return {}
        return {"picture": _encoded(fit(result._read_picture()), "PNG")}
    try:
        picture = result._read_picture()
    except MissingDependencyError as error:
        return {"note": f"no picture: {error}"}
    except DataError as error:
        return {"note": one_line(str(error))}
    made: dict[str, Any] = {"picture": _encoded(picture, "JPEG" if kind == "clip" else "PNG")}
    # Boxes count pixels of the sensor, whatever the picture was enlarged to.
    return made if kind == "events" else made | {"width": picture.width, "height": picture.height}


def _encoded(picture: PIL.Image.Image, form: str) -> str:
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, form, **({"quality": 88} if form == "JPEG" else {}))
    return data_url(buffer.getvalue(), f"image/{form.lower()}")


def _download(result: Any, suffix: str | None = None) -> dict[str, Any]:
    """A file of the result, unless it is too large or needs what is not installed."""
    suffix = suffix or type(result).SUFFIXES[0]
    with tempfile.TemporaryDirectory(prefix="pape-zoo-") as folder:
        try:
            path = result.save(Path(folder) / f"result{suffix}")
        except (DataError, MissingDependencyError):
            return {}
        if path.stat().st_size > MOST_DOWNLOAD:
            return {}
        content = path.read_bytes()
    kind = _TYPES.get(suffix, "application/octet-stream")
    return {"download": {"name": path.name, "data-URL": data_url(content, kind)}}
