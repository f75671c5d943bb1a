"""Says the same thing again only after a while, so that a log stays readable."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

SAY_AGAIN_SECONDS = 60.0
_REMEMBERED = 1_000


class Repeats:
    """Tells which texts are new, or were said a minute ago or longer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: OrderedDict[str, float] = OrderedDict()

    def may_say(self, text: str) -> bool:
        """Whether a text is due; if so, it counts as said now."""
        now = self._clock()
        while self._said and now - next(iter(self._said.values())) >= SAY_AGAIN_SECONDS:
            self._said.popitem(last=False)
        if text in self._said or len(self._said) >= _REMEMBERED:
            return False
        self._said[text] = now
        return True
