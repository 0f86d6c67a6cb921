"""Model cards as HTML. Their text may come from strangers: no markup, picture or address of theirs is taken over."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from zoo.site.markup import Html

__all__ = ["card_html"]

# A link elsewhere is followed by the reader; whatever else Markdown may name would be loaded, run or opened.
_LINKS = ("https://", "http://", "#")


def card_html(text: str) -> tuple[Html, list[tuple[str, str]]]:
    """The body of a card as HTML, and its headings.

    Args:
        text: Markdown of a card, with its front matter and title, both of which are left out.

    Returns:
        The HTML, in which the first level is `h2`, and (id, text) of each of those.
    """
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    # Comments of our own; in a sentence, `html=False` shows them.
    body = re.sub(r"^<!--[^\n]*?-->\s*$", "", body, flags=re.MULTILINE)
    body = re.sub(r"\A\s*# [^\n]*\n", "", body)
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image"])
    parser.validateLink = lambda url: url.strip().lower().startswith(_LINKS)  # type: ignore[method-assign]
    tokens = parser.parse(body)
    headings = _name_headings(tokens)
    for token in [child for block in tokens for child in (block, *(block.children or []))]:
        if token.type == "link_open":
            token.attrSet("rel", "noopener noreferrer")
    shaped = _shape_tables(tokens)
    return Html(parser.renderer.render(shaped, parser.options, {})), headings


def _name_headings(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Gives headings an id each, and levels without gaps below the title of the page."""
    found: list[tuple[str, str]] = []
    used: set[str] = set()
    level = 1
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            level = min(max(int(token.tag[1]), 2), level + 1)
            token.tag = f"h{level}"
            words = tokens[position + 1].content
            start = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "section"
            name, count = f"card-{start}", 1
            while name in used:
                count += 1
                name = f"card-{start}-{count}"
            used.add(name)
            token.attrSet("id", name)
            if level == 2:
                found.append((name, words))
        elif token.type == "heading_close":
            token.tag = f"h{level}"
    return found


def _shape_tables(tokens: Sequence[Token]) -> list[Token]:
    """Tables scroll by themselves; a head without words goes, and the first column heads the rows instead."""
    shaped: list[Token] = []
    heading, skip, bare, first = "facts", False, False, False
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[position + 1].content
        if token.type == "table_open":
            end = next(i for i in range(position, len(tokens)) if tokens[i].type == "thead_close")
            bare = not any(one.content.strip() for one in tokens[position:end])
            label = html.escape(f"Table: {heading}", quote=True)
            shaped.append(_markup(f'<div class="scroll" role="group" tabindex="0" aria-label="{label}">'))
        if token.type == "thead_open" and bare:
            skip = True
        if not skip:
            shaped.append(token)
        if token.type == "thead_close":
            skip = False
        if token.type == "th_open":
            token.attrSet("scope", "col")
            token.attrs.pop("style", None)
        if token.type == "tr_open":
            first = True
        if token.type == "td_open":
            token.attrs.pop("style", None)
            if bare and first:
                token.tag = "th"
                token.attrSet("scope", "row")
        if token.type == "td_close":
            if bare and first:
                token.tag = "th"
            first = False
        if token.type == "table_close":
            shaped.append(_markup("</div>\n"))
    return shaped


def _markup(text: str) -> Token:
    """Markup of ours among the tokens."""
    return Token("html_block", "", 0, content=text)
