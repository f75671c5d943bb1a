"""docker-compose.yml as Compose reads it: parsed, with variables filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tests.packaging import ROOT

_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::-([^}]*))?\})")


def compose_text() -> str:
    return (ROOT / "docker-compose.yml").read_text()


def load(env: Mapping[str, str]) -> dict[str, Any]:
    """Read the file with the variables of `env`; one without value or default is an error."""
    parsed: dict[str, Any] = _filled(yaml.safe_load(compose_text()), env)
    return parsed


def example_env() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def variables(text: str) -> set[str]:
    return {found[1] for found in _VARIABLE.finditer(text) if found[1]}


def _filled(node: Any, env: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, env) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, env) for value in node]
    return _VARIABLE.sub(lambda found: _value(found, env), node) if isinstance(node, str) else node


def _value(found: re.Match[str], env: Mapping[str, str]) -> str:
    name, default = found.groups()
    if name is None:
        return "$"
    value = env.get(name) or default
    if value is None:
        raise KeyError(name)
    return value
