"""Where `run` tells how it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Where to listen; no port is nowhere."""

    host: str = "127.0.0.1"
    port: int | None = None
