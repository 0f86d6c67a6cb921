"""The questions, tables and rules of `rules.yaml`, checked key by key. Imports no torch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.errors import ConfigError

__all__ = ["check_answers", "load_rules", "matches", "questions"]

SOURCES = ("measured", "code", "paper", "judgement")
# Part of rules.yaml -> keys that each of its entries needs, and those that it may have.
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "questions": ({"id", "ask"}, {"default", "choices", "number", "only"}),
    "tables": (
        {"id", "title", "tokens", "metric"},
        {"comparison", "reproduction", "default", "cards", "card", "models", "turned", "lower", "caveat", "shown_only"},
    ),
    "rules": ({"id", "encoding", "reason", "source"}, {"answers", "exclude", "points"}),
}


@functools.cache
def load_rules() -> dict[str, Any]:
    """The content of `rules.yaml`: `questions`, `tokens`, `tables` and `rules`; not to be changed.

    Raises:
        ConfigError: If the file is not as it should be.
    """
    path = Path(__file__).with_name("rules.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        rules = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {' '.join(str(error).split())}") from None
    return check_rules(rules)


def check_rules(rules: Any) -> dict[str, Any]:
    """Returns the rules if every entry has the keys it needs and no others.

    Raises:
        ConfigError: Naming the first entry that is wrong.
    """
    parts = {*_KEYS, "tokens"}
    if not isinstance(rules, dict) or set(rules) != parts:
        raise ConfigError(f"rules: expected the parts {', '.join(sorted(parts))}")
    for part, (needed, possible) in _KEYS.items():
        for entry in rules[part]:
            keys = set(entry)
            if not needed <= keys <= needed | possible:
                wrong = sorted((needed - keys) | (keys - needed - possible))
                raise ConfigError(f"rules: {part} {entry.get('id')!r}: missing or unknown {', '.join(wrong)}")
    known = {question["id"]: question for question in rules["questions"]}
    tables = {table["id"] for table in rules["tables"]}
    for rule in rules["rules"]:
        where, source = f"rules: rule {rule['id']!r}", rule["source"]
        if ("exclude" in rule) == ("points" in rule):
            raise ConfigError(f"{where} must either exclude or have points")
        if source.get("kind") not in SOURCES or not source.get("ref"):
            raise ConfigError(f"{where}: a source has a kind ({', '.join(SOURCES)}) and a ref")
        if source["kind"] == "measured" and source["ref"] not in tables and "/" not in source["ref"]:
            raise ConfigError(f"{where}: there is no table {source['ref']!r}")
        for key, value in rule.get("answers", {}).items():
            values = value if isinstance(value, list) else [value]
            if key not in known or not set(values) <= set(known[key].get("choices", values)):
                raise ConfigError(f"{where}: no question has the answer {key}: {value!r}")
    return rules


def questions() -> list[dict[str, Any]]:
    """The questions in their order: id, text, and choices with their meaning or the range of a number."""
    return [dict(question) for question in load_rules()["questions"]]


def check_answers(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Answers to all questions.

    Args:
        given: Question id -> answer; `None` is no answer.

    Returns:
        The answers, with defaults for what was not given, and the ids of those.

    Raises:
        ConfigError: If a question without a default has no answer, or an answer is none of its choices.
    """
    answers: dict[str, Any] = {}
    assumed = []
    known = [question["id"] for question in load_rules()["questions"]]
    if unknown := [key for key in given if key not in known]:
        raise ConfigError(f"no question is called {unknown[0]!r:.60}; there are {', '.join(known)}")
    for question in load_rules()["questions"]:
        key = question["id"]
        value = given.get(key)
        if value is None:
            if "default" not in question:
                raise ConfigError(f"say {key}: {', '.join(question['choices'])} ({question['ask']})")
            answers[key] = question["default"]
            assumed.append(key)
        elif "number" in question:
            low, high = question["number"]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ConfigError(f"{key} must be a number from {low} to {high}, got {value!r:.60}")
            answers[key] = value
        elif value not in question["choices"]:
            raise ConfigError(f"{key} must be one of {', '.join(question['choices'])}, got {value!r:.60}")
        else:
            answers[key] = value
    return answers, assumed


def matches(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether every wanted key has the wanted value, or one of the wanted values."""
    return all(found[key] in (value if isinstance(value, list) else [value]) for key, value in wanted.items())
