"""The tool that makes a version of the changelog from its fragments."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_breaking_changes_come_first_and_the_rest_is_grouped_by_kind() -> None:
    path = Path(__file__).parents[2] / "tools" / "release_changelog.py"
    spec = importlib.util.spec_from_file_location("release_changelog", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    fragments = {
        "10.fix.md": "A late fix.\n",
        "2.feature.1.md": "An early feature.\n",
        "2.fix.md": "An early fix.\n",
        "3.change.md": "**Breaking:** Say what to do.\n",
    }
    assert tool.section("1.0.0", "2030-01-02", fragments) == (
        "## 1.0.0 (2030-01-02)\n\n### Breaking\n\n- Say what to do.\n\n### New\n\n- An early feature.\n\n"
        "### Fixed\n\n- An early fix.\n- A late fix.\n"
    )
