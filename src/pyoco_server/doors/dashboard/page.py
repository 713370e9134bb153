"""The page: the template, with the settings that the browser has to know."""

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

#: What the dashboard and the page about the API begin with.
MAIN, DOCS_MAIN = "main.js", "docs.js"
#: What the template has where the gateway writes something.
_HTML, _STATIC, _PRELOAD = '<html lang="en" data-pyoco>', "{{static}}", "<!-- modulepreload -->"
#: `import x, { y as z } from "./a.js"`, `export * from "./a.js"` and `import "./a.js"`, over several lines or one.
_IMPORT = re.compile(r"""^[ \t]*(?:import|export)\b(?:[\w\s{},*$]*?\bfrom)?\s*["'](\.{1,2}/[^"']+)["']""", re.MULTILINE)
#: A run whose worker was silent for less is not worth a word (FLOW-252).
_STALE_SECONDS_MIN = 30.0


@dataclass(frozen=True)
class Dashboard:
    #: None: not installed (FLOW-244).
    page: Asset | None
    assets: Assets
    #: The page about the API; None: not installed.
    docs: Asset | None = None


_packaged = functools.cache(read_assets)


def open_dashboard(config: NatsBackendConfig, version: str, folder: Path | None = None) -> Dashboard:
    """The page and its files, ready to send. Reads the folder, ours once per process: a restart shows what changed.

    Never raises for files that are missing (FLOW-246).
    """
    assets = read_assets(folder) if folder is not None else _packaged(Path(__file__).with_name("static"))
    opening = _opening(config, version)
    page, docs = _filled(assets, assets.template, opening, MAIN), _filled(assets, assets.docs, opening, DOCS_MAIN)
    return Dashboard(page, assets, docs)


def _filled(assets: Assets, template: str | None, opening: str, main: str) -> Asset | None:
    """The template, with the settings, and with the modules that `main` needs. None: there is no such page."""
    if template is None:
        return None
    text = (
        template.replace(_HTML, opening, 1)
        .replace(_PRELOAD, _preloads(assets, main), 1)
        .replace(_STATIC, _address(assets))
    )
    return make_asset(text.encode(), MEDIA_TYPES[".html"])


def _opening(config: NatsBackendConfig, version: str) -> str:
    """FLOW-256, FLOW-258. Nothing secret: whoever reaches the gateway may read it."""
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
    """Relative: behind a proxy the page may lie below any path."""
    return f"static/{assets.folder}"


def _preloads(assets: Assets, main: str) -> str:
    """All modules at once: otherwise a browser learns of each only after it has read the one that asks for it."""
    names = (html.escape(name) for name in imports_of(assets, main))
    return "\n".join(f'<link rel="modulepreload" href="{_address(assets)}/{name}">' for name in names)


def imports_of(assets: Assets, main: str = MAIN) -> list[str]:
    """The modules that a page's first one needs, directly or not, each once, those that are needed first in front.

    Found by looking for `import` at the beginning of a line. One that is missed costs a round trip, nothing else.
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
