"""The dashboard's files: which are read, which can be fetched, and what the page receives (section 13)."""

from __future__ import annotations

import gzip
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from setuptools import Distribution  # type: ignore[import-untyped]
from setuptools.command.build_py import build_py  # type: ignore[import-untyped]

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.dashboard import page as page_module
from pyoco_server.doors.dashboard.assets import MEDIA_TYPES, read_assets
from pyoco_server.doors.dashboard.page import MAIN, imports_of, open_dashboard

ROOT = Path(__file__).parents[2]
STATIC = Path(page_module.__file__).with_name("static")

#: As a reader would look for them: of any module, and whether or not it is one of ours.
FROM = r"""^\s*(?:import|export)\b(?:[^;"'()=]*?\bfrom)?\s*["']([^"']+)["']"""

PAGE = """<!doctype html>
<html lang="en" data-pyoco>
<head>
<link rel="stylesheet" href="{{static}}/css/a.css">
<!-- modulepreload -->
<script type="module" src="{{static}}/main.js"></script>
</head>
</html>
"""


def write(folder: Path, **files: str) -> None:
    """`lib__dom_js` is `lib/dom.js`."""
    for name, text in files.items():
        path = folder / ".".join(name.replace("__", "/").rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "static", index_html=PAGE, main_js='import "./lib/a.js";\n', lib__a_js="// 日本\n", css__a_css="a{}"
    )
    return tmp_path / "static"


def shown(folder: Path, version: str = "1.2", **settings: Any) -> str:
    page = open_dashboard(NatsBackendConfig(**settings), version, folder).page
    assert page is not None
    return page.content.decode()


class TestBundle:
    """An installed package serves each page's modules and style sheets as one file each."""

    def test_replaces_the_modules_and_the_style_sheets_of_a_page(self, folder: Path) -> None:
        write(folder, bundle__main_js="let a;", bundle__main_css="a{}")
        page = shown(folder)
        version = read_assets(folder).folder
        assert re.findall(r'(?:src|href)="([^"]+)"', page) == [
            f"static/{version}/bundle/main.css",
            f"static/{version}/bundle/main.js",
        ]

    def test_holds_everything_that_the_pages_import(self, tmp_path: Path) -> None:
        static = shutil.copytree(STATIC, tmp_path / "static")
        subprocess.run([sys.executable, ROOT / "tools" / "bundle_dashboard.py", static], check=True, timeout=60)
        for name, sheets in (("main", 11), ("docs", 4)):
            module = (static / "bundle" / f"{name}.js").read_text(encoding="utf-8")
            assert re.findall(FROM, module, re.MULTILINE) == []
            assert "日本語" in module
            page = (STATIC / ("index.html" if name == "main" else "docs.html")).read_text(encoding="utf-8")
            assert page.count('rel="stylesheet"') >= sheets
            assert "@import" not in (static / "bundle" / f"{name}.css").read_text(encoding="utf-8")
        dashboard = open_dashboard(NatsBackendConfig(), "1.2", static)
        for asset in (dashboard.page, dashboard.docs):
            assert asset is not None
            text = asset.content.decode()
            assert text.count("<script") == text.count('rel="stylesheet"') == 1
            assert "modulepreload" not in text


class TestAssets:
    def test_are_found_by_their_exact_name(self, folder: Path) -> None:
        """FLOW-245"""
        assets = read_assets(folder)
        assert set(assets.files) == {"main.js", "lib/a.js", "css/a.css"}
        for name in ("lib", "lib/", "/main.js", "main.js/", "./main.js", "lib/../main.js", "MAIN.JS", "main", "", "/"):
            assert assets.find(name) is None, name

    def test_that_lie_elsewhere_are_not_there(self, folder: Path) -> None:
        """FLOW-245: neither by a way out of the folder nor by a link that leads there"""
        outside = folder.parent / "outside"
        write(outside, secret_js="secret", deep__secret_js="secret")
        (folder / "link.js").symlink_to(outside / "secret.js")
        (folder / "linked").symlink_to(outside)
        (folder / "within.js").symlink_to(folder / "main.js")
        assets = read_assets(folder)
        assert set(assets.files) == {"main.js", "lib/a.js", "css/a.css"}
        for name in ("../outside/secret.js", "link.js", "linked/secret.js", str(outside / "secret.js")):
            assert assets.find(name) is None, name

    def test_have_a_known_suffix_and_a_type_of_their_own(self, folder: Path) -> None:
        """FLOW-245"""
        write(folder, notes_md="x", app_py="x", main_js_map="x", key_pem="x", icon_svg="<svg/>")
        (folder / ".js").write_text("x")
        assets = read_assets(folder)
        assert set(assets.files) == {"main.js", "lib/a.js", "css/a.css", "icon.svg"}
        assert assets.files["main.js"].media_type == "application/javascript; charset=utf-8"
        assert assets.files["css/a.css"].media_type == "text/css; charset=utf-8"

    def test_are_packed_only_when_that_is_smaller(self, folder: Path) -> None:
        write(folder, long_css="a{color:red}\n" * 500)
        assets = read_assets(folder)
        packed = assets.files["long.css"].gzipped
        assert packed is not None
        assert gzip.decompress(packed) == assets.files["long.css"].content
        assert assets.files["css/a.css"].gzipped is None
        assert read_assets(folder).files["long.css"].gzipped == packed, "the same bytes from every gateway"

    def test_have_another_version_when_any_of_them_is_another_one(self, folder: Path) -> None:
        versions = [read_assets(folder).version, read_assets(folder).version]
        assert versions[0] == versions[1]
        write(folder, lib__a_js="// 日本語\n")
        versions.append(read_assets(folder).version)
        (folder / "lib" / "a.js").rename(folder / "lib" / "b.js")
        versions.append(read_assets(folder).version)
        assert len(set(versions)) == 3
        assert all(re.fullmatch(r"[0-9a-f]{16}", version) for version in versions)

    def test_stay_for_ever_under_their_version_alone(self, folder: Path) -> None:
        assets = read_assets(folder)
        main = assets.files["main.js"]
        assert assets.find("main.js") == (main, False)
        assert assets.find(f"v-{assets.version}/main.js") == (main, True)
        assert assets.find("v-0123456789abcdef/main.js") == (main, False), "of another version: the one of today"
        assert assets.find(f"v-{assets.version}/lib/a.js") == (assets.files["lib/a.js"], True)
        for name in (f"v-{assets.version}", f"v-{assets.version}/", f"v-{assets.version}/x.js", "v-/../main.js"):
            assert assets.find(name) is None, name

    @pytest.mark.parametrize("what", ["nothing", "a file", "an unreadable folder"])
    def test_that_are_missing_are_no_error(self, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """FLOW-246"""
        if what == "a file":
            (tmp_path / "static").write_text("x")
        if what == "an unreadable folder":
            write(tmp_path / "static", index_html=PAGE)

            def fail(path: Path) -> bytes:
                raise PermissionError(path)

            monkeypatch.setattr(Path, "read_bytes", fail)
        found = open_dashboard(NatsBackendConfig(), "1.2", tmp_path / "static")
        assert (found.page, found.assets.files) == (None, {})


class TestPage:
    @pytest.mark.parametrize(
        ("setting", "locale", "language"),
        [("auto", "ja_JP.UTF-8", "ja"), ("auto", "C.UTF-8", "en"), ("ja", "en_US", "ja"), ("en", "ja_JP", "en")],
    )
    def test_has_the_language_of_the_server(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str, locale: str, language: str
    ) -> None:
        """FLOW-254, FLOW-256"""
        monkeypatch.setenv("LC_ALL", locale)
        assert f'<html lang="{language}" ' in shown(folder, dashboard_lang=setting)

    def test_tells_the_settings_that_the_browser_needs(self, folder: Path) -> None:
        """FLOW-252, FLOW-258"""
        assert shown(folder, dashboard_lang="en").splitlines()[1] == (
            '<html lang="en" data-auth="none" data-key-header="X-API-Key" data-read-only="false" data-version="1.2" '
            'data-stale-seconds="30">'
        )
        others = {
            "http_auth_mode": "api_key",
            "http_api_key_header": "X-Other'Key",
            "dashboard_read_only": True,
            "run_heartbeat_interval_sec": 12.5,
            "auth_pepper": "a secret of the server",
        }
        text = shown(folder, '"><script>', dashboard_lang="ja", **others)
        assert text.splitlines()[1] == (
            '<html lang="ja" data-auth="api_key" data-key-header="X-Other&#x27;Key" data-read-only="true" '
            'data-version="&quot;&gt;&lt;script&gt;" data-stale-seconds="37.5">'
        )
        assert "secret" not in text

    def test_names_its_files_by_their_version_and_from_where_it_is(self, folder: Path) -> None:
        """Behind a proxy it may lie below any path."""
        version = read_assets(folder).version
        text = shown(folder)
        assert f'href="static/v-{version}/css/a.css"' in text
        assert f'<script type="module" src="static/v-{version}/main.js"></script>' in text
        assert f'<link rel="modulepreload" href="static/v-{version}/lib/a.js">' in text
        assert "{{" not in text
        assert "<!--" not in text

    def test_asks_at_once_for_every_module_it_needs(self, folder: Path) -> None:
        write(
            folder,
            main_js="""\
// import "./lib/of_a_comment.js";
import { a } from "./lib/a.js";
  import b, {
    c as d,
    $e,
  } from './lib/b.js';
import * as f from "./views/f.js"; import "./lib/a.js";
/** @typedef {import("./lib/type_only.js").T} T */
const later = () => import("./lib/later.js");
const text = 'import "./lib/of_a_text.js"';
import "./missing.js";
""",
            lib__a_js='import "./b.js";\nimport "../main.js";\n',
            lib__b_js='export * from "./c.js";\nexport { x } from "../views/g.js";\nexport const y = "from ./z.js";\n',
            lib__c_js='import"./d.js"\n',
            lib__d_js="",
            lib__later_js="",
            lib__of_a_comment_js="",
            lib__of_a_text_js="",
            lib__type_only_js="",
            views__f_js="",
            views__g_js="",
            views__unused_js="",
        )
        found = imports_of(read_assets(folder))
        assert found == ["lib/a.js", "lib/b.js", "views/f.js", "lib/c.js", "views/g.js", "lib/d.js"]


class TestOurOwn:
    def test_are_in_a_wheel(self) -> None:
        """FLOW-244: they are part of the installed package"""
        found = Distribution({"src_root": str(ROOT)})
        found.parse_config_files([str(ROOT / "pyproject.toml")])
        command = found.get_command_obj("build_py")
        assert isinstance(command, build_py)
        command.ensure_finalized()
        command.manifest_files = {}
        package = ROOT / "src" / "pyoco_server"
        packaged = {Path(path) for path in command.find_data_files("pyoco_server", str(package))}
        files = {path for path in STATIC.rglob("*") if path.is_file()}
        assert files
        assert files <= packaged

    def test_are_all_of_a_kind_that_is_served(self) -> None:
        odd = [path for path in STATIC.rglob("*") if path.is_file() and path.suffix not in MEDIA_TYPES]
        assert odd == []

    def test_lead_nowhere_else(self) -> None:
        """No file is fetched from another host, and whatever one of ours asks for is there."""
        assets = read_assets(STATIC)
        assert assets.template is not None
        assert MAIN in assets.files
        for name in re.findall(r"\{\{static\}\}/([^\"]+)", assets.template):
            assert name in assets.files, name
        for name, asset in assets.files.items():
            if not name.endswith(".js"):
                continue
            targets = re.findall(FROM, asset.content.decode(), re.MULTILINE)
            for target in targets:
                where = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
                assert target.startswith("."), (name, target)
                assert where in assets.files, (name, target)

    def test_have_a_page_with_everything_filled_in(self) -> None:
        """FLOW-244"""
        text = shown(STATIC, dashboard_lang="ja")
        assert '<html lang="ja" data-auth="none" ' in text
        assert "{{static}}" not in text
        assert "<!-- modulepreload -->" not in text
        assert "data-pyoco" not in text


#: What the Japanese texts call a thing, and what they do not call it.
TERMS = {
    "worker": ["ワーカー"],
    "gateway": ["ゲートウェイ"],
    "run": ["ラン(?![キ])", "実行単位"],
    "キュー": ["待ち行列", "列で待"],
    "デッドレター": ["dead letter", "配信不能"],
    "パラメーター": ["パラメータ(?!ー)"],
    "キャンセル": ["取消", "取り消し"],
}


@pytest.mark.parametrize("path", sorted((STATIC / "texts").glob("*.js")), ids=lambda path: path.name)
def test_japanese_texts_use_one_term_for_a_thing(path: Path) -> None:
    texts = path.read_text(encoding="utf-8").partition("export const ja")[2]
    found = [f"{other}: use {term}" for term, others in TERMS.items() for other in others if re.search(other, texts)]
    assert found == []
