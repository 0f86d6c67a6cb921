"""HTML from plain values: everything is text, and escaped, unless it was made here."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any

__all__ = ["Html", "fill", "join", "read_static", "script_data", "scroll", "tag"]

_VOID = ("input", "meta", "link", "br", "path", "circle", "line", "rect")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def join(parts: Iterable[Any], between: str = "") -> Html:
    """Parts one after the other; those that are no `Html` are escaped."""
    return Html(between.join(_text(part) for part in parts))


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """An element.

    Args:
        name: Of the element.
        *children: Text, escaped, or `Html`; `None` is left out.
        **attributes: `None` and `False` are left out, `True` stands alone; `_` in a name becomes `-`, one at the end
            goes away (`class_`).
    """
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        shown.append(f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"')
    opened = f"<{name}{''.join(shown)}>"
    if name in _VOID and not children:
        return Html(opened.replace(">", "/>") if name in ("path", "circle", "line", "rect") else opened)
    return Html(f"{opened}{join(child for child in children if child is not None)}</{name}>")


def scroll(label: str, child: Html) -> Html:
    """Something wide that scrolls on its own, by keyboard too."""
    return tag("div", child, class_="scroll", role="group", aria_label=label, tabindex="0")


def fill(template: str, **parts: Any) -> Html:
    """A template of `static/` with its marks `{{name}}` filled in, all in one pass, so that no value adds a mark.

    Args:
        template: File name.
        **parts: A value for every mark; text is escaped.
    """
    return Html(re.sub(r"\{\{(\w+)\}\}", lambda mark: _text(parts[mark[1]]), read_static(template)))


def read_static(name: str) -> str:
    """The text of a file of `static/`."""
    return resources.files("zoo.site").joinpath("static", name).read_text("utf-8")


def script_data(variable: str, data: Any) -> str:
    """A classic script that sets a variable of the window, since pages from `file://` may not fetch."""
    return f"window.{variable} = {json.dumps(data, allow_nan=False, separators=(',', ':'))};\n"


def _text(part: Any) -> str:
    return part if isinstance(part, Html) else html.escape(str(part), quote=True)
