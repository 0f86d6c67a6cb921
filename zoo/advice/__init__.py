"""Choosing a position encoding: what `zoo advise` does, as plain data. Imports no torch."""

from zoo.advice.page import page_data
from zoo.advice.ranking import advise
from zoo.advice.rules import questions

__all__ = ["advise", "page_data", "questions"]
