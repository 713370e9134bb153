"""The whole suite: all tests beside each other, and the few that failed once more, alone.

Thousands of tests drive real servers on two cores, and a shared machine now and then stands still for seconds. What
fails alone too has failed. What passes alone is named at the end: somebody has to look whether the test waits for luck,
or the program does. More than a few of them are no accident, and are not asked again.
"""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

#: How many tests may be asked again.
MOST = 3
_TESTS_FAILED = 1
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    """Takes the arguments of pytest, and ends with its exit code."""
    code = _pytest(*arguments, "--cache-clear")
    failed = sorted(json.loads(_FAILED.read_text("utf-8"))) if _FAILED.exists() else []
    if code != _TESTS_FAILED or not 0 < len(failed) <= MOST:
        return code
    _say(f"\n{len(failed)} failed beside the others, as told above. Once more, alone:")
    code = _pytest(*arguments, "--last-failed", "-n0")
    if code == 0:
        _say("UNSTEADY: these failed beside the others and passed alone. Look into them:", *failed)
    return code


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode  # noqa: S603


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
