"""What all pages of the site have in common: head, navigation, footer."""

from __future__ import annotations

import zoo
from zoo.site.markup import Html, fill, join, tag

__all__ = ["page"]

_PAGES = (
    ("index.html", "Models"),
    ("advise.html", "Choose an encoding"),
    ("measurements.html", "Measurements"),
)


def page(
    body: Html, *, title: str, about: str, scripts: tuple[str, ...] = (), here: str | None = None, root: str = ""
) -> str:
    """A whole page.

    Args:
        body: What is in its `main`.
        title: Of the page, without the name of the site.
        about: A sentence for search engines and previews.
        scripts: Files of `assets/`, in their order.
        here: Which page of the navigation this is.
        root: What leads from its folder to that of the site, `""` or `"../"`.
    """
    links = [
        tag("li", tag("a", name, href=f"{root}{file}", aria_current="page" if file == here else None))
        for file, name in _PAGES
    ]
    return fill(
        "page.html",
        title=f"{title} - pape-zoo",
        about=about,
        root=root,
        navigation=tag("ul", join(links)),
        body=body,
        version=zoo.__version__,
        scripts=join(tag("script", src=f"{root}assets/{name}") for name in scripts),
    )
