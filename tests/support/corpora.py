"""Hostile inputs that others have collected (tests/corpora/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "corpora"

NAUGHTY: list[str] = json.loads((_FOLDER / "naughty-strings.json").read_text(encoding="utf-8"))
"""Strings that break programs: 515 of them."""

JSON_CASES: list[Path] = sorted((_FOLDER / "json").glob("*.json"))
"""Cases of a JSON parser: `y_` must be accepted, `n_` rejected, `i_` either way; 318 of them."""

assert (len(NAUGHTY), len(JSON_CASES)) == (515, 318), "the corpora are not whole"
