"""Spark's failures as sentences: the error we raised in an executor, or the first line of theirs.

An error of ours that is raised in a Python worker comes back as text inside Spark's exception. Its
class name and message are in that text, so it can be raised again here as what it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from lake_consumer import errors
from lake_consumer.errors import LakeError, SparkFailed
from lake_consumer.outages import recognise

P = ParamSpec("P")
T = TypeVar("T")

_OURS = re.compile(r"lake_consumer\.errors\.(?P<kind>\w+): (?P<message>[^\n]+)")
_CAUSES = (
    re.compile(r"^: ([\w.]+: [^\n]+)", re.MULTILINE),
    re.compile(r"^Caused by: ([^\n]+)", re.MULTILINE),
    re.compile(r"^(\w+Error: [^\n]+)", re.MULTILINE),
)
"""Where Java and Python name what began it all; the last one found is the deepest."""


def clear_errors(function: Callable[P, T]) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (PySparkException, Py4JError) as error:
            raise translate(str(error)) from error

    return call


def translate(text: str) -> LakeError:
    if found := _OURS.search(text):
        kind = getattr(errors, found["kind"], LakeError)
        error: LakeError = kind(found["message"])
        return error
    causes = [cause for pattern in _CAUSES for cause in pattern.findall(text)]
    line = causes[-1] if causes else next(iter(text.strip().splitlines()), "no reason given")
    return (recognise(text) or SparkFailed)(f"a Spark job failed: {line[:500]}")
