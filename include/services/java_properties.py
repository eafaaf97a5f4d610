"""The files of options that Java's services read.

Source: https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/Properties.html#load(java.io.Reader).
"""

from __future__ import annotations


def escaped(value: str) -> str:
    """Return a value as it is written after `key=`, in ASCII: Java takes other bytes for Latin-1."""
    text = "".join(map(_escaped, value))
    # Blanks before a value do not belong to it.
    return f"\\{text}" if text.startswith(" ") else text


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if " " <= character <= "~":
        return character
    # Java's characters are units of UTF-16; names of files that are not UTF-8 have lone ones.
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
