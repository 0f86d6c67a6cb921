"""What README.md says to type: its fenced blocks, the commands in them, and commands within lines of text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

README = Path(__file__).resolve().parent.parent / "README.md"
SHELL = ("bash", "")


class Block(NamedTuple):
    """A fenced block, and the line of README it begins at."""

    line: int
    language: str
    text: str


class Command(NamedTuple):
    """A command of a block, and the file that its output is sent to."""

    line: int
    words: tuple[str, ...]
    to: str | None = None

    def __str__(self) -> str:
        return shlex.join(self.words) + (f" > {self.to}" if self.to else "")


def blocks(text: str | None = None) -> list[Block]:
    """All fenced blocks, in order."""
    parsed = MarkdownIt().parse(README.read_text(encoding="utf-8") if text is None else text)
    return [Block((t.map or [0])[0] + 1, t.info.strip(), t.content) for t in parsed if t.type == "fence"]


def commands(text: str | None = None) -> list[Command]:
    """All commands of shell blocks, in order; `&&` and line ends part them."""
    return [command for block in blocks(text) if block.language in SHELL for command in _of(block)]


def _of(block: Block) -> Iterator[Command]:
    line = block.line + 1
    for written in re.split(r"(?<!\\)\n", block.text):
        lexer = shlex.shlex(written.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split = True
        parts: list[list[str]] = [[]]
        for word in lexer:
            if word == "&&":
                parts.append([])
            else:
                parts[-1].append(word)
        for words in filter(None, parts):
            to = words[-1] if words[-2:-1] == [">"] else None
            plain = words[:-2] if to else words
            if strange := [word for word in plain if set(word) <= set(";&|<>()")]:
                raise AssertionError(f"README.md:{line}: {strange[0]} is more shell than the tests read: {written}")
            yield Command(line, tuple(plain), to)
        line += written.count("\n") + 1


def inline_commands() -> list[tuple[str, ...]]:
    """`zoo ...` between backticks in text, in order, without repetitions."""
    found: dict[tuple[str, ...], None] = {}
    queue: list[Token] = MarkdownIt("commonmark").enable("table").parse(README.read_text(encoding="utf-8"))
    while queue:
        token = queue.pop(0)
        queue[:0] = token.children or []
        if token.type == "code_inline" and token.content.startswith("zoo "):
            found[tuple(shlex.split(token.content))] = None
    return list(found)
