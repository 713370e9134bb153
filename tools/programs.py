"""Sees to it that there is a browser for the tests: `make browser`.

Debian's chromium and fonts, from Debian's own packages. On another system point CHROMIUM at a Chromium or Chrome.
"""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import os
import shutil
import subprocess
import sys

#: A browser, and fonts in which both of the dashboard's languages can be read.
PACKAGES = ("chromium", "fonts-liberation", "fonts-ipafont-gothic")


def main() -> int:
    if os.environ.get("CHROMIUM") or (shutil.which("chromium") and _has(PACKAGES)):
        return 0
    apt = shutil.which("apt-get")
    if apt is None:
        sys.stderr.write("No apt-get here: set CHROMIUM to the path of a Chromium or Chrome.\n")
        return 1
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    sys.stdout.write(f"Installing {', '.join(PACKAGES)}\n")
    sys.stdout.flush()
    install = [*sudo, apt, "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    for command in ([*sudo, apt, "update", "-qq"], install):
        done = subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL)  # noqa: S603  (our words)
        if done.returncode:
            sys.stderr.write(f"{' '.join(command)} failed. Install the packages by hand, or set CHROMIUM.\n")
            return 1
    return 0


def _has(packages: tuple[str, ...]) -> bool:
    query = shutil.which("dpkg-query")
    if query is None:
        return True  # not Debian's: whoever installed it knows
    told = subprocess.run([query, "-W", "-f", "${db:Status-Status}\n", *packages], capture_output=True, check=False)  # noqa: S603
    return told.returncode == 0 and set(told.stdout.split()) == {b"installed"}


if __name__ == "__main__":
    sys.exit(main())
