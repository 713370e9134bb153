"""The dashboard pages: templates filled with the settings that the browser needs."""

from __future__ import annotations

import functools
import html
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.dashboard.assets import MEDIA_TYPES, Asset, Assets, make_asset, read_assets

__all__ = ["MAIN", "Dashboard", "imports_of", "open_dashboard"]

#: The entry modules of the dashboard and of the API page.
MAIN, DOCS_MAIN = "main.js", "docs.js"
#: In an installed package each entry module, with all it imports, and its page's style sheets are one file below this
#: folder (`tools/bundle_dashboard.py`). A source checkout has no such folder.
_BUNDLE = "bundle"
#: The placeholders in the templates.
_HTML, _STATIC, _PRELOAD = '<html lang="en" data-pyoco>', "{{static}}", "<!-- modulepreload -->"
#: `import x, { y as z } from "./a.js"`, `export * from "./a.js"` and `import "./a.js"`, over several lines or one.
_IMPORT = re.compile(r"""^[ \t]*(?:import|export)\b(?:[\w\s{},*$]*?\bfrom)?\s*["'](\.{1,2}/[^"']+)["']""", re.MULTILINE)
_SHEETS = re.compile(r'(?:[ \t]*<link rel="stylesheet" href="\{\{static\}\}/[^"]+">\n)+')
#: A run without heartbeats for less than this is not reported (FLOW-252).
_STALE_SECONDS_MIN = 30.0


@dataclass(frozen=True)
class Dashboard:
    #: None if not installed (FLOW-244).
    page: Asset | None
    assets: Assets
    #: The API page, or None if not installed.
    docs: Asset | None = None


_packaged = functools.cache(read_assets)


def open_dashboard(config: NatsBackendConfig, version: str, folder: Path | None = None) -> Dashboard:
    """Prepare the pages and their files.

    Reads the folder, the packaged one only once per process, so changes need a restart. Never raises for missing files
    (FLOW-246).
    """
    assets = read_assets(folder) if folder is not None else _packaged(Path(__file__).with_name("static"))
    opening = _opening(config, version)
    page, docs = _filled(assets, assets.template, opening, MAIN), _filled(assets, assets.docs, opening, DOCS_MAIN)
    return Dashboard(page, assets, docs)


def _filled(assets: Assets, template: str | None, opening: str, main: str) -> Asset | None:
    """Fill the template with the settings and the modules that `main` needs. Returns None without a template."""
    if template is None:
        return None
    bundled = f"{_BUNDLE}/{main}"
    if bundled in assets.files:
        sheet = f"{_BUNDLE}/{main.removesuffix('.js')}.css"
        template = _SHEETS.sub(f'  <link rel="stylesheet" href="{_STATIC}/{sheet}">\n', template, count=1)
        template = template.replace(f'src="{_STATIC}/{main}"', f'src="{_STATIC}/{bundled}"', 1)
        main = bundled
    text = (
        template.replace(_HTML, opening, 1)
        .replace(_PRELOAD, _preloads(assets, main), 1)
        .replace(_STATIC, _address(assets))
    )
    return make_asset(text.encode(), MEDIA_TYPES[".html"])


def _opening(config: NatsBackendConfig, version: str) -> str:
    """FLOW-256, FLOW-258. Contains no secrets: any client that reaches the gateway may read it."""
    stale_seconds = max(_STALE_SECONDS_MIN, 3 * config.run_heartbeat_interval_sec)
    given = {
        "lang": config.language(),
        "data-auth": config.http_auth_mode,
        "data-key-header": config.http_api_key_header,
        "data-read-only": "true" if config.dashboard_read_only else "false",
        "data-version": version,
        "data-stale-seconds": f"{stale_seconds:g}",
    }
    attributes = [f'{name}="{html.escape(value)}"' for name, value in given.items()]
    return f"<html {' '.join(attributes)}>"


def _address(assets: Assets) -> str:
    """Return a relative URL, since a proxy may serve the page below any path."""
    return f"static/{assets.folder}"


def _preloads(assets: Assets, main: str) -> str:
    """Preload all modules: otherwise a browser discovers each one only after it has parsed its importer."""
    names = (html.escape(name) for name in imports_of(assets, main))
    return "\n".join(f'<link rel="modulepreload" href="{_address(assets)}/{name}">' for name in names)


def imports_of(assets: Assets, main: str = MAIN) -> list[str]:
    """Return the modules that `main` imports, directly or indirectly, each once, nearest imports first.

    They are found by searching for `import` at the start of a line. A missed one costs only a round trip.
    """
    found, at = [main], 0
    while at < len(found):
        asset = assets.files.get(found[at])
        text = "" if asset is None else asset.content.decode()
        for target in _IMPORT.findall(text):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(found[at]), target))
            if name in assets.files and name not in found:
                found.append(name)
        at += 1
    return found[1:]
