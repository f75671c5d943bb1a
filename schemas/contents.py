"""The content of a logical message as text, however it was carried, and bounded in size."""

from __future__ import annotations

from schemas.values import Value


def content_text(content: Value, most_bytes: int) -> str:
    """Read text, bytes, or PostgreSQL's notation for bytes; `ValueError` if it is none of them."""
    if not isinstance(content, str | bytes | bytearray | memoryview):
        raise ValueError(f"{type(content).__name__} is no content of a logical message")
    is_hex = isinstance(content, str) and content.startswith("\\x")
    if len(content) > (most_bytes * 2 if is_hex else most_bytes):
        raise ValueError(f"{len(content)} bytes are more than the {most_bytes} that are read")
    if isinstance(content, str):
        return bytes.fromhex(content[2:]).decode() if is_hex else content
    return bytes(content).decode()
