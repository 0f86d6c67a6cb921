"""Pages in one HTML file: a template of a package, and data that cannot break out of it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

__all__ = ["fill_page"]


def fill_page(package: str, template: str, *, title: str, data: Mapping[str, Any]) -> str:
    """A page: a template with its marks `{{title}}` and, after it and within a script element, `{{data}}` filled in.

    Args:
        package: Where the template lies, for example `"modalities.points"`.
        template: Its file.
        title: Any text; it stands in the page as text.
        data: Plain values for the script, which reads them as JSON.
    """
    # Inside a script element nothing but "<" could end it.
    written = json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    text = resources.files(package).joinpath(template).read_text("utf-8")
    # Cut, not replaced: a title may hold the mark of the data.
    before, _, rest = text.partition("{{title}}")
    between, _, after = rest.partition("{{data}}")
    return before + html.escape(title) + between + written + after
