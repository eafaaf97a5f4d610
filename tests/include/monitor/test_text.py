"""Values as texts of a page."""

from __future__ import annotations

from include.monitor.text import markdown_list


def test_nothing_becomes_markdown_when_a_line_is_an_entry() -> None:
    lines = ["plan: `rm`, *all* of <b>it</b>", "", "two\nlines \u202e", "# no heading"]
    assert markdown_list(lines).splitlines() == [
        "- `plan: 'rm', *all* of <b>it</b>`",
        "- `two lines`",
        "- `# no heading`",
    ]
