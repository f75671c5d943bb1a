"""Options: one row each, and where a value comes from.

A flag wins over its environment variable, that over `VARIABLE_FILE` (a file holding the value, for
secrets), that over the default. A secret has no flag, because a process list shows flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lake_consumer.errors import BadOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing a user may set."""

    name: str
    env: str
    help: str
    default: str | None = None
    flag: str | None = None
    secret: bool = False
    switch: bool = False
    """Whether the flag alone says yes."""


Values = Mapping[str, str | None]
"""Every option by name, as text."""


def read_values(
    options: tuple[Option, ...], flags: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, str | None]:
    return {option.name: _find(option, flags, environ) for option in options}


def _find(option: Option, flags: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    if (given := flags.get(option.name)) is not None:
        return str(given)
    # Empty is how Compose and others write "not set".
    if text := environ.get(option.env):
        return text
    if named := environ.get(f"{option.env}_FILE"):
        try:
            return Path(named).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise BadOption(
                f"{option.env}_FILE names {named}, which cannot be read: {why}",
                advice=f"Correct the path, or set {option.env} itself.",
            ) from error
    return option.default


_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0", "")


def read_switch(option: Option, text: str | None) -> bool:
    """Whether a switch is on."""
    said = (text or "").lower()
    if said not in (*_YES, *_NO):
        raise BadOption(
            f"{text!r} is neither true nor false", advice=f"Correct {option.flag} ({option.env})."
        )
    return said in _YES


N = TypeVar("N", int, float)


class Numbers:
    """Reads numbers above zero, and names the option where there is none."""

    def __init__(self, options: tuple[Option, ...], values: Values) -> None:
        self._options = options
        self._values = values

    def __call__(self, name: str, kind: Callable[[str], N]) -> N:
        text = self._values[name] or ""
        try:
            number = kind(text)
        except ValueError:
            number = kind("0")
        if number <= 0:
            option = next(option for option in self._options if option.name == name)
            raise BadOption(
                f"{text!r} is not a number above zero",
                advice=f"Correct {option.flag or option.env} (environment: {option.env}).",
            )
        return number
