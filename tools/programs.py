"""Sees to it that the programs are there that the tests drive, and do not come with Python: `make programs`.

A browser, the tesseract command with its languages, and letters to write their pages in: Debian's own packages. On
another system install tesseract by its own ways, and point CHROMIUM at a Chromium or Chrome.

The browser is Chromium's headless shell, which needs two thirds of the processor time that Chromium needs for the same
tests. Chromium does where apt has no such package.
"""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import os
import shutil
import subprocess
import sys

#: Packages of a browser, each named like its command: the first one that can be installed is used.
BROWSERS = ("chromium-headless-shell", "chromium")
#: In which both of the dashboard's languages can be read.
FONTS = ("fonts-liberation", "fonts-ipafont-gothic")
#: What reads images, the languages that the tests read, and letters for the one of them that still has none. English
#: comes with the command only as long as nobody changes what Debian says it depends on: it is named.
READER = ("tesseract-ocr", "tesseract-ocr-eng", "tesseract-ocr-kor", "tesseract-ocr-jpn", "fonts-nanum")


def main() -> int:
    browsers = [()] if os.environ.get("CHROMIUM") else [(browser,) for browser in BROWSERS]
    for browser in browsers:
        wanted = (*browser, *(FONTS if browser else ()), *READER)
        if all(map(shutil.which, (*browser, "tesseract"))) and _has(wanted):
            return 0
        if _installs(wanted):
            return 0
    sys.stderr.write("Install tesseract by hand, and set CHROMIUM to the path of a Chromium or Chrome.\n")
    return 1


def _installs(wanted: tuple[str, ...]) -> bool:
    apt = shutil.which("apt-get")
    if apt is None:
        sys.stderr.write("No apt-get here.\n")
        return False
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    sys.stdout.write(f"Installing {', '.join(wanted)}\n")
    sys.stdout.flush()
    install = [*sudo, apt, "install", "-y", "-qq", "--no-install-recommends", *wanted]
    for command in ([*sudo, apt, "update", "-qq"], install):
        done = subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL)  # noqa: S603  (our words)
        if done.returncode:
            sys.stderr.write(f"{' '.join(command)} failed.\n")
            return False
    return True


def _has(packages: tuple[str, ...]) -> bool:
    query = shutil.which("dpkg-query")
    if query is None:
        return True  # not Debian's: whoever installed it knows
    told = subprocess.run([query, "-W", "-f", "${db:Status-Status}\n", *packages], capture_output=True, check=False)  # noqa: S603
    return told.returncode == 0 and set(told.stdout.split()) == {b"installed"}


if __name__ == "__main__":
    sys.exit(main())
