"""Values as texts of a page."""

from __future__ import annotations

from include.monitor.text import markdown_list


def test_each_line_is_an_entry_in_which_nothing_is_markdown() -> None:
    lines = ["plan: `rm`, *all* of <b>it</b>", "", "two\nlines \u202e", "# no heading"]
    assert markdown_list(lines).splitlines() == [
        "- `plan: 'rm', *all* of <b>it</b>`",
        "- `two lines`",
        "- `# no heading`",
    ]
