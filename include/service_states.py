"""State files of embedded services, `<home>/services/<name>.json` (mode 0600): where each listens, and whose it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from include.errors import UsageError


def service_state(home: Path, name: str) -> dict[str, Any]:
    """Return the embedded service's state file; empty when the service was never started.

    Raise UsageError when it is another user's, or damaged.
    """
    try:
        return _read(home, name)
    except PermissionError as error:
        owner = _owner(_file(home, name))
        raise UsageError(f"{_file(home, name)}: {error.strerror}", remedy=f"run it as {owner}") from None


def check_not_copied(home: Path, name: str) -> None:
    """Raise UsageError when the state file names a service of the home of which this one is a copy.

    It is also raised when nobody can tell, because this user may not look at the other home.
    """
    state = service_state(home, name)
    # Older versions wrote no home, but where Kafka and PostgreSQL keep their data.
    original = Path(state.get("home") or Path(state.get("data") or home / name).parent)
    use, stop = f"TIDEMARK_HOME={original} to use it", "stop its services, copy it again, then ./tidemark up"
    try:
        # One that was moved has its own, also where another took its place.
        if original.samefile(home) or _read(original, name).get("address") != state["address"]:
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        owner = _owner(_file(original, name))
        use, stop = f"{use}, as {owner}, whose it is", f"have {owner} {stop}"
    raise UsageError(f"{home} is a copy of {original}, and has that one's {name}", remedy=f"{use}; else {stop}")


def _read(home: Path, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads(_file(home, name).read_text()))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise UsageError(
            f"{_file(home, name)} is not a whole state file",
            remedy="put a copy of it there; it alone has the password of an embedded PostgreSQL"
            if name == "postgres"
            else f"remove it, then ./tidemark up {name}",
        ) from None


def _file(home: Path, name: str) -> Path:
    return home / "services" / f"{name}.json"


def _owner(path: Path) -> str:
    """Return who owns a path or, of what cannot be looked at, the nearest folder around it."""
    for each in (path, *path.parents):
        try:
            return each.owner()
        except KeyError:
            return f"user {each.stat().st_uid}"
        except OSError:
            continue
    return "its owner"
