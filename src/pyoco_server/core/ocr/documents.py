"""OCR output as files for people: Markdown, and a minimal document that word processors open."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from pyoco_server.core.ocr.marking import UNREADABLE, Block

__all__ = ["DOCX_TYPE", "MARKDOWN_TYPE", "PageText", "docx", "markdown"]

MARKDOWN_TYPE: Final = "text/markdown; charset=utf-8"
DOCX_TYPE: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


@dataclass(frozen=True)
class PageText:
    """The text read from one page."""

    source: str
    #: Counts from 1 within its image.
    page: int
    blocks: Sequence[Block]

    @property
    def heading(self) -> str:
        return f"{self.source}, page {self.page}"


_NOTHING: Final = "(nothing was seen on this page)"

_SPECIAL = re.compile(r"[\\`*_<>\[\]|~&]")
#: At the start of a line, these would turn it into a heading, a list item or a horizontal rule.
_LEADING = re.compile(r"^(\s*)([#+=-]|\d+(?=[.)]))")


def markdown(pages: Iterable[PageText]) -> bytes:
    """Return a heading for each page and a paragraph for each block, with line breaks kept. The text is escaped, so
    that no part of it is interpreted as Markdown or HTML."""
    parts: list[str] = []
    for page in pages:
        parts.append(f"## {_inline(page.heading)}")
        for block in page.blocks:
            lines = [_line(line) for line in block.text.split("\n")]
            parts.append(f"### {' '.join(lines)}" if block.is_title else "  \n".join(lines))
        if not page.blocks:
            parts.append(f"*{_NOTHING}*")
    return ("\n\n".join(parts) + "\n").encode("utf-8", "replace")


def _inline(text: str) -> str:
    """Escape the text, except for the marks of unreadable words: brackets without a target are not a link."""
    return UNREADABLE.join(_SPECIAL.sub(r"\\\g<0>", part) for part in _printable(text).split(UNREADABLE))


def _line(text: str) -> str:
    return _LEADING.sub(lambda found: f"{found[1]}{_guarded(found[2])}", _inline(text))


def _guarded(start: str) -> str:
    """Escape the start of a line. `12` before a dot becomes `12\\`, so that the dot does not start a list."""
    return start + "\\" if start.isdigit() else "\\" + start


_CONTENT_TYPES: Final = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    f'<Override PartName="/word/document.xml" ContentType="{DOCX_TYPE}.main+xml"/>'
    '<Override PartName="/word/styles.xml"'
    ' ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.styles+xml"/>'
    "</Types>"
)
_RELS: Final = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE_RELS: Final = (
    f'<Relationships xmlns="{_RELS}"><Relationship Id="rId1" Type="{_OFFICE}/officeDocument"'
    ' Target="word/document.xml"/></Relationships>'
)
_DOCUMENT_RELS: Final = (
    f'<Relationships xmlns="{_RELS}"><Relationship Id="rId1" Type="{_OFFICE}/styles" Target="styles.xml"/>'
    "</Relationships>"
)
_W: Final = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def _heading_style(level: int, half_points: int) -> str:
    return (
        f'<w:style w:type="paragraph" w:styleId="Heading{level}"><w:name w:val="heading {level}"/>'
        f'<w:basedOn w:val="Normal"/><w:next w:val="Normal"/><w:pPr><w:keepNext/><w:spacing w:before="240"/>'
        f'<w:outlineLvl w:val="{level - 1}"/></w:pPr><w:rPr><w:b/><w:sz w:val="{half_points}"/></w:rPr></w:style>'
    )


_STYLES: Final = (
    f"<w:styles {_W}>"
    '<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/>'
    '<w:pPr><w:spacing w:after="120"/></w:pPr></w:style>'
    f"{_heading_style(1, 32)}{_heading_style(2, 28)}</w:styles>"
)
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
#: A fixed time, so that the same text always gives the same bytes.
_MOMENT: Final = (1980, 1, 1, 0, 0, 0)
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def docx(pages: Iterable[PageText]) -> bytes:
    """Return a document with a heading for each page and a paragraph for each block. O(size)."""
    body: list[str] = []
    for page in pages:
        body.append(_paragraph(page.heading, "Heading1"))
        body.extend(_paragraph(block.text, "Heading2" if block.is_title else None) for block in page.blocks)
        if not page.blocks:
            body.append(_paragraph(_NOTHING))
    document = f"<w:document {_W}><w:body>{''.join(body)}<w:sectPr/></w:body></w:document>"
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in (
            ("[Content_Types].xml", _CONTENT_TYPES),
            ("_rels/.rels", _PACKAGE_RELS),
            ("word/document.xml", document),
            ("word/_rels/document.xml.rels", _DOCUMENT_RELS),
            ("word/styles.xml", _STYLES),
        ):
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, (_HEAD + content).encode())
    return written.getvalue()


def _paragraph(text: str, style: str | None = None) -> str:
    lines = "<w:br/>".join(f'<w:t xml:space="preserve">{escape(line)}</w:t>' for line in _printable(text).split("\n"))
    named = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{named}<w:r>{lines}</w:r></w:p>"


def _printable(text: str) -> str:
    """Replace characters that XML cannot hold by U+FFFD, so that the gap is visible."""
    return _NOT_XML.sub("\ufffd", text)
