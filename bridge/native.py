"""The compiled loops, where this installation has them: everything works without, more slowly.

They are compiled when the package is built or installed and a C compiler is there. Setting
`BRIDGE_PURE_PYTHON` leaves them alone, to measure or to rule them out.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

_log = logging.getLogger("bridge")


class Native:
    """What was compiled, by name."""

    def __init__(self, module: ModuleType | None, missing: str = "") -> None:
        self._module = module
        self.missing = missing
        """Why they are not used."""

    @property
    def is_there(self) -> bool:
        return self._module is not None

    def __call__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self._module, name)
        return found

    def say(self) -> None:
        """Let operators know that they pay more CPU than they must."""
        if not self.is_there:
            _log.warning(
                "the compiled loops are not used, a change costs three times the CPU or more: %s;"
                " install the package again where there is a C compiler",
                self.missing,
            )


def find_native(environ: Mapping[str, str]) -> Native:
    if environ.get("BRIDGE_PURE_PYTHON"):
        return Native(None, "BRIDGE_PURE_PYTHON is set")
    try:
        return Native(importlib.import_module("bridge.compiled"))
    except ImportError as error:
        return Native(None, str(error))


native = find_native(os.environ)
