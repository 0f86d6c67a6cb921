"""Text and pictures in one sequence: questions about a cell of a grid of colours.

A context shows pictures, each after its name, row by row, one token per cell: `Kaccbbdabacdbdaca`. Then come questions:
`?K21=b`, the cell in row 2 and column 1 of picture K. Only answers are scored. How many pictures there are is what
grows: with ids that count tokens, the last text is further from the first picture than anything in training.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from modalities.sequence.batch import TokenBatch
from modalities.sequence.datasets.base import SequenceSet, next_tokens
from modalities.sequence.datasets.made import DrawnSet, MadeUp, pick
from zoo.coordinates import Coordinates
from zoo.errors import ConfigError, DataError
from zoo.position_ids import V2PE, Image, MRoPE, ResetMRoPE, Scheme, Segment, Text
from zoo.training.settings import check

__all__ = ["SCHEMES", "PictureQuestions"]

# How tokens are numbered -> what numbers them, `None`: they are counted.
SCHEMES: dict[str, type[Scheme] | None] = {"count": None, "v2pe": V2PE, "mrope": MRoPE, "reset-mrope": ResetMRoPE}
_NAMES, _COLOURS, _DIGITS = string.ascii_uppercase, string.ascii_lowercase[:16], string.digits
_QUESTION = 6  # Tokens.


@dataclass(frozen=True)
class PictureQuestions(MadeUp):
    """Settings of the task.

    Attributes:
        pictures: In a context of training.
        grid: Rows and columns of a picture.
        questions: In a context.
        scheme: A key of `SCHEMES`: tokens counted, V2PE, M-RoPE, or M-RoPE with rows and columns of every picture
            from 0.
        stride: Of V2PE: pictures step by stride / 256.
    """

    pictures: int = 2
    grid: int = 4
    questions: int = 4
    scheme: str = "count"
    stride: int = 64

    name = "pictures"

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(_NAMES)
        check("pictures", self.pictures, 1 <= self.pictures <= most, f"between 1 and {most}")
        check("grid", self.grid, 1 <= self.grid <= len(_DIGITS), f"between 1 and {len(_DIGITS)}")
        check("questions", self.questions, 1 <= self.questions <= 1000, "between 1 and 1000")
        check("scheme", self.scheme, self.scheme in SCHEMES, f"one of {', '.join(SCHEMES)}")
        V2PE(self.stride)

    def open(self, split: str) -> SequenceSet:
        """See `MadeUp.open`."""
        return _PictureSet(self, split)

    def numbering(self) -> Scheme | None:
        """What numbers tokens; `None`: they are counted."""
        kind = SCHEMES[self.scheme]
        return None if kind is None else V2PE(self.stride) if kind is V2PE else kind()

    def placing(self, prompt: Tensor) -> Callable[[Tensor], Coordinates] | None:
        """See `MadeUp.placing`; a question shows whole pictures first, of which there may be none."""
        scheme = self.numbering()
        if scheme is None:
            return None
        shown = _pictures(prompt[0].tolist(), self.grid)
        cells = shown * (1 + self.grid**2)

        def place(tokens: Tensor) -> Coordinates:
            text: list[Segment] = [Text(tokens.shape[1] - cells)] if tokens.shape[1] > cells else []
            return scheme([*_shown(shown, self.grid), *text], device=tokens.device)

        return place


class _PictureSet(DrawnSet):
    what = "pictures"

    def __init__(self, made: PictureQuestions, split: str) -> None:
        super().__init__("picture-questions", made, split, _NAMES + _COLOURS + _DIGITS + "?=")
        self.made = made
        self.scheme = made.numbering()
        self.axes = 1 if self.scheme is None else self.scheme.axes
        self.length = self.tokens_at(None)
        self._positions: dict[int, Coordinates] = {}

    def default_sizes(self) -> list[int]:
        """As many pictures as in training, and more, up to the number of names."""
        first = self.made.pictures
        return [times * first for times in (1, 2, 4, 8, 12) if times * first <= len(_NAMES)]

    def tokens_at(self, size: int | None) -> int:
        """See `DrawnSet.tokens_at`."""
        pictures = self.made.pictures if size is None else size
        if not 1 <= pictures <= len(_NAMES):
            raise ConfigError(f"a context has 1 to {len(_NAMES)} pictures, not {pictures}")
        return pictures * (1 + self.made.grid**2) + self.made.questions * _QUESTION - 1

    def draw(self, count: int, generator: Generator, size: int | None) -> TokenBatch:
        """See `DrawnSet.draw`; `size` is the number of pictures."""
        self.tokens_at(size)
        pictures, grid, questions = size or self.made.pictures, self.made.grid, self.made.questions

        def drawn(below: int, *shape: int) -> Tensor:
            return torch.randint(below, (count, *shape), generator=generator)

        names = pick(count, pictures, len(_NAMES), generator)
        colours = drawn(len(_COLOURS), pictures, grid * grid) + len(_NAMES)
        which, row, column = drawn(pictures, questions), drawn(grid, questions), drawn(grid, questions)
        answers = colours.flatten(1).gather(1, which * grid * grid + row * grid + column)
        digits = len(_NAMES) + len(_COLOURS)
        ask, equals = (torch.full_like(row, digits + len(_DIGITS) + sign) for sign in (0, 1))
        asked = torch.stack([ask, names.gather(1, which), row + digits, column + digits, equals, answers], dim=2)
        shown = torch.cat([names[:, :, None], colours], dim=2)
        tokens = torch.cat([shown.flatten(1), asked.flatten(1)], dim=1).to(self.device)
        scored = torch.zeros(1, tokens.shape[1], dtype=torch.bool, device=self.device)
        scored[:, shown[0].numel() + _QUESTION - 1 :: _QUESTION] = True
        return next_tokens(tokens, scored.expand_as(tokens), self._placed(pictures))

    def _placed(self, pictures: int) -> Coordinates | None:
        """Positions (1, N, p) of all tokens."""
        if self.scheme is None:
            return None
        found = self._positions.get(pictures)
        if found is None or found.values.device != self.device:
            segments = [*_shown(pictures, self.made.grid), Text(self.made.questions * _QUESTION)]
            found = self._positions[pictures] = self.scheme(segments, device=self.device)
        return found


def _shown(pictures: int, grid: int) -> list[Segment]:
    """Segments of pictures, each after its name."""
    picture: list[Segment] = [Text(1), Image(grid, grid)]
    return picture * pictures


def _pictures(ids: list[int], grid: int) -> int:
    """How many pictures tokens begin with.

    Raises:
        DataError: If one is not whole.
    """
    count, step = 0, 1 + grid**2
    colours = range(len(_NAMES), len(_NAMES) + len(_COLOURS))
    while count * step < len(ids) and ids[count * step] < len(_NAMES):
        cells = ids[count * step + 1 : (count + 1) * step]
        if len(cells) < grid**2 or not all(cell in colours for cell in cells):
            raise DataError(
                f"picture {count + 1} of the prompt is not a name A..Z and {grid**2} colours a..p, row by row"
            )
        count += 1
    return count
