"""Bundle the dashboard's modules and style sheets: `python tools/bundle_dashboard.py FOLDER`, a copy of `static`.

A browser then fetches one module and one style sheet per page instead of about a hundred. The package build calls it; a
source checkout serves the modules themselves. esbuild comes from `npm ci` in `tools/js`; it is a single executable and
needs no Node.
"""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_TOOLS = Path(__file__).parent
#: The pages and their entry modules.
_PAGES = {"index.html": "main", "docs.html": "docs"}
_SHEET = re.compile(r'<link rel="stylesheet" href="\{\{static\}\}/([^"]+)">')


def esbuild() -> Path | None:
    """Return the executable, or None if it is not installed."""
    return next((_TOOLS / "js" / "node_modules" / "@esbuild").glob("*/bin/esbuild"), None)


def bundle(static: Path) -> None:
    """Write `bundle/` below the folder. Raises FileNotFoundError without esbuild, CalledProcessError if it fails."""
    program = esbuild()
    if program is None:
        raise FileNotFoundError("esbuild is missing: run `npm ci --ignore-scripts` in tools/js")
    target = static.resolve() / "bundle"
    flags = ["--bundle", "--minify", "--target=es2022", "--charset=utf8", "--log-level=warning"]
    modules = [str(static / f"{name}.js") for name in _PAGES.values()]
    subprocess.run([program, *modules, *flags, "--format=esm", f"--outdir={target}"], check=True)  # noqa: S603
    for page, name in _PAGES.items():
        sheets = _SHEET.findall((static / page).read_text(encoding="utf-8"))
        imports = "".join(f'@import "./{sheet}";\n' for sheet in sheets)
        command = [program, *flags, "--loader=css", f"--outfile={target / name}.css"]
        subprocess.run(command, input=imports.encode(), cwd=static, check=True)  # noqa: S603


if __name__ == "__main__":
    bundle(Path(sys.argv[1]))
