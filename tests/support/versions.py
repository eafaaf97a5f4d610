"""The versions of a pipeline's code, computed anew."""

from __future__ import annotations

from include import versions

CACHED = (
    versions.code_version,
    versions.decoder_version,
    versions.view_version,
    versions.rules_version,
    versions.suite_version,
)

ALL = {"decoder", "code", "rules", "hourly_counts"}
"""What `all_versions` names for a pipeline with this one view."""


def clear() -> None:
    """Forget what was computed."""
    for each in CACHED:
        each.cache_clear()


def all_versions(name: str) -> dict[str, str]:
    """Return the versions of a pipeline, those of its views by their names."""
    clear()
    return {
        "decoder": versions.decoder_version(name),
        "code": versions.code_version(name),
        "rules": versions.rules_version(name),
        **{view.name: versions.view_version(name, view.name) for view in versions.load_pipeline(name).views},
    }


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """Return which versions are not the same."""
    return {each for each in before if before[each] != after[each]}
