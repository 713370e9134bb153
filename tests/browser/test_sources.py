"""Rules of the dashboard's own files that no browser is needed for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.stacks import ROOT

STATIC = ROOT / "src/pyoco_server/doors/dashboard/static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
SHEETS = sorted(STATIC.rglob("*.css"))
PAGES = sorted(STATIC.rglob("*.html"))
TEXTS = [path for path in SCRIPTS if path.parent.name == "texts" and path.name != "index.js"]
SPEAKERS = [path for path in SCRIPTS if path.parent.name != "texts"]
_ENTRY = re.compile(r'^\s*"([\w.-]+)":\s*(".*"),?\s*$', re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


def dictionaries(path: Path) -> dict[str, list[tuple[str, str]]]:
    """The entries of `en` and `ja`, in the order of the file."""
    halves = re.split(r"^export const (en|ja) = ", path.read_text(), flags=re.MULTILINE)
    return {halves[at]: _ENTRY.findall(halves[at + 1]) for at in range(1, len(halves), 2)}


def words_of(path: Path) -> set[str]:
    """The keys of one area."""
    return {key for key, _ in dictionaries(path)["en"]}


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_both_dictionaries_have_the_same_keys_in_the_same_order(path: Path) -> None:
    """FLOW-253"""
    found = dictionaries(path)
    assert [key for key, _ in found["en"]] == [key for key, _ in found["ja"]]
    assert len(words_of(path)) == len(found["en"]), "a key is there twice"
    entries = sum(line.strip().startswith('"') for line in path.read_text().splitlines())
    assert entries == 2 * len(found["en"]), "an entry is not on a line of its own"


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_both_languages_ask_for_the_same_facts_and_neither_is_a_copy(path: Path) -> None:
    """FLOW-253: a translation that was forgotten is the English text again; one with `{n}` misspelt shows `{n}`."""
    both = dictionaries(path)
    for (key, english), (_, japanese) in zip(both["en"], both["ja"], strict=True):
        facts = [set(re.findall(r"\{(\w+)\}", text)) for text in (english, japanese)]
        assert facts[0] == facts[1], key
        has_words = len(re.findall(r"[a-z]{2,}", re.sub(r"\{\w+\}", "", english))) > 2
        assert not has_words or english != japanese, f"{key} is not translated"


def test_no_text_is_missing_and_none_is_left_over() -> None:
    """FLOW-253"""
    known: set[str] = set()
    for path in TEXTS:
        assert not known & words_of(path), "two areas have the same key"
        known |= words_of(path)
    sources = "\n".join(path.read_text() for path in SPEAKERS)
    asked = set(re.findall(r'\bt\(\s*"([^"]+)"', sources))
    assert asked <= known, f"missing: {sorted(asked - known)}"
    families = set(re.findall(r"`([\w.-]+)\$\{", sources)) | {
        f"{prefix}." for prefix in re.findall(r'\bwordFor\(\s*"([\w.-]+)"', sources)
    }
    quoted = set(re.findall(r'"([\w.-]+)"', sources))
    quoted |= {f"{key}_one" for key in quoted}
    unused = [key for key in known - quoted if not any(key.startswith(each) for each in families if "." in each)]
    assert not unused, f"nobody says: {sorted(unused)}"


@pytest.mark.parametrize("path", SPEAKERS, ids=name_of)
def test_a_module_says_nothing_that_is_not_in_the_dictionaries(path: Path) -> None:
    """FLOW-253: no Japanese, and no English sentence, in a string outside of texts/."""
    code = re.sub(r"/\*.*?\*/|^\s*//.*$|\s//\s.*$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", code)
    sentences = [text for text in re.findall(r'"([^"\n]*)"', code) if re.match(r"[A-Z][a-z]+ [a-z]+ [a-z]+", text)]
    assert not sentences


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_module_makes_no_markup_and_no_code_of_text(path: Path) -> None:
    """FLOW-259: what the browser's policy refuses too is not even tried."""
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|setHTML|DOMParser|srcdoc|document\.write"
        r"|\beval\(|new Function|setAttribute\(\s*[\"']on|\.cssText|javascript:"
        r"|[\"']style[\"']\s*,|import\(\s*[^\"'`\s)]"
    )
    assert re.findall(forbidden, path.read_text()) == []


@pytest.mark.parametrize("path", [*SCRIPTS, *SHEETS, *PAGES, STATIC / "icon.svg"], ids=name_of)
def test_a_file_is_short_and_knows_no_other_host(path: Path) -> None:
    """The page works without any network but the gateway's."""
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    hosts = set(
        re.findall(
            r"""(?:https?:)?//[\w-]+\.[\w.-]+[^\s"'`)]*""", re.sub(r"^\s*(//|\*).*$", "", text, flags=re.MULTILINE)
        )
    )
    assert hosts <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_page_itself_has_no_code_and_no_style(path: Path) -> None:
    """FLOW-259: the policy allows neither."""
    page = path.read_text()
    assert not re.findall(r"\son\w+=|\sstyle=|<style|javascript:", page)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]


def test_only_one_module_talks_to_the_gateway() -> None:
    """FLOW-258: the key is added in one place. `connection.js` asks for the open routes, which need none."""
    sources = {name_of(path): path.read_text() for path in SCRIPTS}
    talkers = {name for name, text in sources.items() if re.search(r"\bfetch\(|XMLHttpRequest|EventSource\(", text)}
    assert talkers <= {"lib/api.js", "lib/connection.js"}
    keepers = {name for name, text in sources.items() if "pyoco.key" in text}
    assert keepers == {"lib/session.js"}
    assert "localStorage" not in (STATIC / "lib/session.js").read_text()
    assert not [name for name, text in sources.items() if "document.cookie" in text or "indexedDB" in text]


def test_a_colour_has_a_name() -> None:
    """Both schemes are defined in one file; a colour anywhere else would be right in one of them at most.

    A shadow, which is see-through (#rrggbbaa), darkens either, and a mask has no colour.
    """
    for path in SHEETS:
        if path.name != "tokens.css":
            code = re.sub(r"/\*.*?\*/|mask(-image)?:[^;]*;", "", path.read_text(), flags=re.DOTALL)
            assert not re.findall(
                r":[^;{}]*(#(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})\b|\brgba?\(|\bhsla?\(|\boklch\()", code
            ), name_of(path)
