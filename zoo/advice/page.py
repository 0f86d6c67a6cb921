"""Everything that `advise` knows, as plain data from which a page without a server can do the same."""

from __future__ import annotations

from typing import Any

from zoo.advice.candidates import candidates, properties
from zoo.advice.measurements import tables
from zoo.advice.rules import check_answers, load_rules, questions

__all__ = ["page_data"]


def page_data() -> dict[str, Any]:
    """Questions, rules, tables, and the properties of every candidate for every kind of tokens, JSON-ready.

    `properties` is by tokens, then by encoding; `beyond_fold` in it is for an unknown side (compare `fold_side`).
    """
    rules = load_rules()
    return {
        "questions": questions(),
        "tokens": rules["tokens"],
        "rules": rules["rules"],
        "tables": tables(),
        "properties": {
            tokens: {name: properties(name, check_answers({"tokens": tokens})[0]) for name in candidates()}
            for tokens in rules["tokens"]
        },
    }
