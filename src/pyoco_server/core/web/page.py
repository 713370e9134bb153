"""Extracts the title of a page and the beginning of its text. Bytes in, two short texts out.

The page is read as a stream of tags, without building a tree: a parser that behaves like a browser can be made to hold
5 GB by a page of 55 KB (two thousand open `<font>`, each reopened in every paragraph), and to take minutes by 400,000
nested `<div>`. Here time and memory are linear in the length of the page, whatever it contains.
"""

from __future__ import annotations

import codecs
import functools
import html
import re
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.priced.plain_text import plain

__all__ = ["EXCERPT_LENGTH_MAX", "TITLE_LENGTH_MAX", "WebPage", "read_page"]

EXCERPT_LENGTH_MAX: Final = 2_000
TITLE_LENGTH_MAX: Final = 300
#: A page without 2000 characters of text after this many tags has little text.
_TAGS_MAX: Final = 50_000
#: The length of the longest common character reference.
_ESCAPE_LENGTH: Final = 10
#: The part of a page that may declare its encoding.
_META_BYTES: Final = 1_024
#: The limit for plain text: enough for an excerpt, even if much of it is white space.
_PLAIN_BYTES: Final = 65_536


@dataclass(frozen=True)
class WebPage:
    """Title and text; empty if there is none."""

    title: str = ""
    text: str = ""


def read_page(body: bytes, content_type: str) -> WebPage:
    """Return title and text of markup, the text of other text formats, and nothing for other types. O(length)."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {"text/html", "application/xml", "text/xml"} or kind.endswith("+xml"):
        return _read_markup(_decode(body, content_type, looks_for_meta=True))
    is_text = kind.startswith("text/") or kind.endswith("+json") or kind in _TEXTS
    if not is_text:
        return WebPage()
    return WebPage(text=_shown(_decode(body[:_PLAIN_BYTES], content_type, looks_for_meta=False), EXCERPT_LENGTH_MAX))


_TEXTS: Final = frozenset({"application/json", "application/javascript", "application/x-ndjson", "application/yaml"})


def _shown(text: str, length_max: int) -> str:
    """Return the text as a single line that every store can hold."""
    return plain(" ".join(text.split()), length_max).strip()


# ---- Encodings ----

_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.ASCII | re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
#: The encodings that a page may declare: those with one byte per letter, and others. Python supports more, among them
#: `zip`, and `punycode`, which is quadratic.
_BYTE_CODECS: Final = {
    **{f"windows-125{n}": f"cp125{n}" for n in range(9)},
    **{f"iso-8859-{n}": f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **dict.fromkeys(("iso-8859-1", "latin1", "latin-1", "us-ascii", "ascii"), "cp1252"),  # as browsers do
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    "windows-874": "cp874",
    "tis-620": "cp874",
}
_CODECS: Final = {
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987", "cp949"), "cp949"),
    **dict.fromkeys(("gb2312", "gbk", "gb18030"), "gb18030"),
    "big5": "big5hkscs",
    "euc-jp": "euc_jp",
    "iso-2022-jp": "iso2022_jp",
    "utf-16": "utf-16-le",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}


def _decode(body: bytes, content_type: str, *, looks_for_meta: bool) -> str:
    """Decode by the byte order mark, else by the header, else by the declaration in the page, else as UTF-8."""
    for mark, codec in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(codec, "replace")
    named = _CHARSET.search(content_type)
    label = named[1] if named else ""
    if not label and looks_for_meta and (meta := _META_CHARSET.search(body[:_META_BYTES])):
        label = meta[1].decode("ascii", "replace")
        if label.lower().startswith("utf-16"):  # the declaration was readable as ASCII, so the page is not UTF-16
            label = ""
    label = label.lower()
    if label in _BYTE_CODECS:
        return codecs.charmap_decode(body, "strict", _letters(_BYTE_CODECS[label]))[0]
    return body.decode(_CODECS.get(label, "utf-8"), "replace")


@functools.cache
def _letters(codec: str) -> str:
    """Return the letters of all 256 bytes. Replacing undefined bytes one by one takes half a second for a page full of
    them."""
    return bytes(range(256)).decode(codec, "replace")


# ---- Markup ----

_NAME = re.compile(r"</?([A-Za-z][^\s/>]{0,40})", re.ASCII)
_REST_OF_TAG = re.compile(r"(?:=\s*+(?:\"[^\"]*+\"|'[^']*+')|[^>=]++|=)*+>")
#: Elements that end only at their own end tag, regardless of their contents.
_RAW: Final = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.ASCII | re.IGNORECASE)
    for name in ("script", "style", "title", "textarea", "iframe", "noembed", "noframes", "xmp")
}
#: Elements that are skipped with all their contents.
_HIDDEN: Final = frozenset({"noscript", "template", "svg"})
#: Elements that do not separate words.
_INLINE_NAMES: Final = """
    a abbr b bdi bdo big cite code data del dfn em font i ins kbd label mark q ruby s samp small span strong sub sup
    time tt u var wbr"""
_INLINE: Final = frozenset(_INLINE_NAMES.split())
#: A numeric character reference with more digits than any valid one: parsing thousands of digits is expensive.
_LONG_NUMBER = re.compile(r"(&#)([0-9]{9,})|(&#[xX])([0-9a-fA-F]{9,})", re.ASCII)


def _unescaped(text: str) -> str:
    return html.unescape(_LONG_NUMBER.sub(_shortened, text))


def _shortened(number: re.Match[str]) -> str:
    """Remove leading zeros; a number that is out of range stays out of range."""
    return (number[1] or number[3]) + ((number[2] or number[4]).lstrip("0")[:8] or "0")


def _read_markup(text: str) -> WebPage:
    reader = _Reader(text)
    reader.read()
    return WebPage(title=reader.title, text=_shown("".join(reader.parts), EXCERPT_LENGTH_MAX))


class _Reader:
    """Walks from tag to tag. Every search either advances or ends the walk, so no part is scanned repeatedly."""

    def __init__(self, markup: str) -> None:
        self._markup = markup
        self._at = 0
        #: Inside a skipped element: its name, and how many of that name are open.
        self._hidden, self._depth = "", 0
        self._length = 0
        self.parts: list[str] = []
        self.title = ""

    def read(self) -> None:
        for _ in range(_TAGS_MAX):
            begin = self._markup.find("<", self._at)
            self._append(self._markup[self._at : begin if begin >= 0 else len(self._markup)])
            if begin < 0 or self._length >= EXCERPT_LENGTH_MAX:
                return
            self._at = self._end_of(begin)
            if self._at < 0:  # an unterminated construct
                return

    def _append(self, text: str) -> None:
        if not text or self._hidden:
            return
        words = " ".join(text.split())
        words = _unescaped(words[: EXCERPT_LENGTH_MAX * _ESCAPE_LENGTH])
        before, after = " " * text[0].isspace(), " " * text[-1].isspace()
        self.parts.append(f"{before}{words}{after}")
        self._length += len(words)

    def _end_of(self, begin: int) -> int:
        """Return the position after the construct that starts with this `<`. -1: it is not terminated."""
        if self._markup.startswith("<!--", begin):
            end = self._markup.find("-->", begin + 2)  # `<!-->` is a complete comment
            return end + 3 if end >= 0 else -1
        name = _NAME.match(self._markup, begin)
        if name is not None:
            rest = _REST_OF_TAG.match(self._markup, name.end())
            return -1 if rest is None else self._tag(begin, name[1].lower(), rest)
        if self._markup.startswith(("<!", "<?", "</"), begin):
            end = self._markup.find(">", begin)
            return end + 1 if end >= 0 else -1
        self._append("<")
        return begin + 1

    def _tag(self, begin: int, name: str, rest: re.Match[str]) -> int:
        is_end = self._markup[begin + 1] == "/"
        if self._hidden:
            if name == self._hidden and not rest[0].endswith("/>"):
                self._depth += -1 if is_end else 1
            self._hidden = self._hidden if self._depth else ""
        elif name in _HIDDEN and not is_end and not rest[0].endswith("/>"):
            self._hidden, self._depth = name, 1
        elif name not in _INLINE:
            self.parts.append(" ")
        return self._raw(name, rest.end()) if name in _RAW and not is_end else rest.end()

    def _raw(self, name: str, begin: int) -> int:
        end = _RAW[name].search(self._markup, begin)
        if name == "title" and not self.title and not self._hidden:
            text = self._markup[begin : end.start() if end else len(self._markup)]
            text = " ".join(text[: TITLE_LENGTH_MAX * _ESCAPE_LENGTH * 2].split())
            self.title = _shown(_unescaped(text), TITLE_LENGTH_MAX)
        return end.start() if end else -1
