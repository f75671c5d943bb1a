"""Asks a running bridge how it is, over its own HTTP endpoint."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import aiohttp

from bridge.config import HttpConfig
from bridge.errors import NothingListens, reason_of

TIMEOUT_SECONDS = 5


async def fetch_status(config: HttpConfig) -> dict[str, Any]:
    """Give what `/status` says."""
    url = f"http://{address(config)}/status"
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            if answer.status != 200:
                raise NothingListens(f"{url} answers {answer.status}: that is not a bridge")
            status = await answer.json()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        why = reason_of(error)
        raise NothingListens(f"no bridge answers at {url}: {why}") from error
    if not isinstance(status, dict) or "confirmed_lsn" not in status:
        raise NothingListens(f"{url} answers, and is not a bridge")
    return status


def address(config: HttpConfig) -> str:
    """Say where to connect: an address that stands for all of them stands for this machine."""
    host = config.host
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return f"{host}:{config.port}"
    if found.is_unspecified:
        host = "127.0.0.1" if found.version == 4 else "::1"
    return f"[{host}]:{config.port}" if ":" in host else f"{host}:{config.port}"


def render(status: Mapping[str, Any], prefix: str = "") -> str:
    """Write a status for people, one line per fact."""
    lines = []
    for name, value in status.items():
        # Subjects carry table names, which are shown as they are.
        label = f"{prefix}{name}" if "." in name else f"{prefix}{name}".replace("_", " ")
        match value:
            case {}:
                lines.append(render(value, f"{prefix}{name} ") if value else f"{label:<32} none")
            case list():
                lines.append(f"{label:<32} {', '.join(map(str, value)) or 'none'}")
            case _:
                lines.append(f"{label:<32} {'-' if value is None else value}")
    return "\n".join(lines)
