"""What is wrong with data, all of it at once: kinds of problems with how often each occurs and a few examples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zoo.errors import DataError
from zoo.results import one_line

__all__ = ["Problem", "Report"]

_EXAMPLES = 5


@dataclass
class Problem:
    """One kind of problem.

    Attributes:
        what: In words.
        fatal: Whether training cannot, or should not, begin.
        count: How often it occurs.
        examples: The first few.
    """

    what: str
    fatal: bool
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        more = self.count - len(self.examples)
        shown = "; ".join(self.examples) + (f"; {more:,} more" if more else "")
        return f"{self.what}: {self.count:,}" + (f" ({shown})" if shown else "")


class Report:
    """Problems of a data set, in the order in which they were found.

    Args:
        data: What the data set is called in messages.
    """

    def __init__(self, data: str) -> None:
        self.data = data
        self._problems: dict[str, Problem] = {}

    def error(self, what: str, *examples: str) -> None:
        """Takes note of something that training cannot or should not begin with."""
        self._add(what, True, examples)

    def note(self, what: str, *examples: str) -> None:
        """Takes note of something that training can stand."""
        self._add(what, False, examples)

    def _add(self, what: str, fatal: bool, examples: Iterable[str]) -> None:
        problem = self._problems.setdefault(what, Problem(what, fatal))
        for example in examples:
            problem.count += 1
            if len(problem.examples) < _EXAMPLES:
                problem.examples.append(one_line(example)[:200])

    @property
    def errors(self) -> list[Problem]:
        """The problems that training cannot begin with."""
        return [problem for problem in self._problems.values() if problem.fatal]

    @property
    def notes(self) -> list[Problem]:
        """The others."""
        return [problem for problem in self._problems.values() if not problem.fatal]

    def lines(self) -> list[str]:
        """A line for each kind of problem, errors first."""
        return [f"error: {p}" for p in self.errors] + [f"note: {p}" for p in self.notes]

    def raise_errors(self) -> None:
        """Refuses data with errors.

        Raises:
            DataError: With all of them in one line.
        """
        if self.errors:
            raise DataError(f"{self.data}: {'; '.join(map(str, self.errors))}")
