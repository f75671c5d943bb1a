"""Text in a terminal's columns: how wide it is, and what would tear a table apart. Pure.

Widths are those of Unicode: East Asian wide characters and emoji take two columns, combining marks
none. Characters that move the cursor or turn the direction of writing are shown as escapes.
"""

from __future__ import annotations

import re
import unicodedata

_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_WIDE = ("W", "F")
_NO_WIDTH = ("Mn", "Me", "Cf")
_UNSAFE = ("Cc", "Cf", "Zl", "Zp", "Cs")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LOOKS_ESCAPED = re.compile(r"\\(?=[nrtxuU])")


def escape(text: str) -> str:
    """Keep a text on its line; a backslash that could be taken for an escape is doubled."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escape, _LOOKS_ESCAPED.sub(r"\\\\", text)))


def _escape(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE or character == _JOINER:
        return character
    code = ord(character)
    plain = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return _NAMED.get(character, plain if code < 0x10000 else f"\\U{code:08x}")


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(_widths(text))


def shorten(text: str, most: int) -> str:
    """Cut a text to a number of columns, with an ellipsis if something is missing."""
    if width(text) <= most:
        return text
    left = most - 1
    for at, taken in enumerate(_widths(text)):
        left -= taken
        if left < 0:
            return text[:at] + "…"
    return text


def pad(text: str, columns: int, *, right: bool = False) -> str:
    space = " " * (columns - width(text))
    return space + text if right else text + space


def _widths(text: str) -> list[int]:
    found = []
    joined = False
    for character in text:
        found.append(0 if joined else _width(character))
        # What follows a joiner is drawn into the same picture.
        joined = character == _JOINER
    return found


def _width(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH or ord(character) in _SKIN_TONES:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
