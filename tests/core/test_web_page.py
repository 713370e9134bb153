"""Titles and texts of pages, also of those that were made to hurt."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core.priced.plain_text import is_plain
from pyoco_server.core.web.page import EXCERPT_LENGTH_MAX, TITLE_LENGTH_MAX, WebPage, read_page

HTML = "text/html; charset=utf-8"
MEGA = 2_097_152


def read(markup: str) -> WebPage:
    return read_page(markup.encode(), HTML)


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>One</p><p>two</p>three", "One two three"),
        ("f<b>oo</b> <i>bar</i>", "foo bar"),
        ("a<br>b<hr/>c<td>d", "a b c d"),
        ("  many \n\t spaces\u00a0here ", "many spaces here"),
        ("<script>let a = '<p>no</p>';</script>yes", "yes"),
        ("<SCRIPT type='x>y'>no</SCRIPT >yes", "yes"),
        ("<style>p { }</style><noscript>no <p>no</noscript>yes", "yes"),
        ("<template>no<template>no</template>no</template>yes", "yes"),
        ("<template><script>'</template>'</script>no</template>yes", "yes"),
        ("<svg><title>no</title><text>no</text></svg>yes", "yes"),
        ("<svg/>yes", "yes"),
        ("<!-- <p>no</p> -->yes<!-->too", "yestoo"),
        ("<!doctype html><?xml no?></>yes", "yes"),
        ("<a title=\"1 > 0\" href='<b>'>yes</a>", "yes"),
        ("<a title=it's>yes</a>", "yes"),
        ("1 < 2 &lt; 3 &amp; &#x41;&#66;&eacute;&nbsp;&unknown;", "1 < 2 < 3 & ABé &unknown;"),
        ("&#0;&#xD800;&#1;x", "\ufffd\ufffdx"),
        (f"&#{'1' * 5_000};x", "\ufffdx"),
        (f"&#x{'1' * 5_000};&#X{'f' * 9}x", "\ufffd\ufffdx"),
        (f"&#{'0' * 5_000}65;&#x{'0' * 5_000}42&#{'0' * 5_000}x", "AB\ufffdx"),
        ("&#1114111x;&#1114112;&#123456789abc", "x;\ufffd\ufffdabc"),
        ("a\x00b\x07c", "abc"),
        ("yes<script>no", "yes"),
        ("yes<a href='no", "yes"),
        ("yes<!-- no", "yes"),
        ("日本<em>語</em>", "日本語"),
    ],
)
def test_the_text_is_what_people_read(markup: str, text: str) -> None:
    assert read(f"<title>T</title><body>{markup}") == WebPage("T", text)


@pytest.mark.parametrize(
    ("markup", "title"),
    [
        ("<title>\n Two  words </title>", "Two words"),
        ("<TITLE lang=en>A &amp; <b>B</b></TITLE>", "A & <b>B</b>"),
        ("<title>first</title><title>second</title>", "first"),
        ("<svg><title>no</title></svg><title>yes</title>", "yes"),
        ("<title></title>", ""),
        ("<p>none", ""),
        ("<title>" + "x" * 10_000 + "</title>", "x" * TITLE_LENGTH_MAX),
        ("<title>never ends", "never ends"),
        (f"<title>&#{'1' * 5_000};", "\ufffd"),
    ],
)
def test_the_title_is_the_first(markup: str, title: str) -> None:
    assert read(markup).title == title


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("日本語é".encode(), "text/plain; charset=utf-8"),
        ("日本語é".encode(), "text/plain"),
        (b"\xef\xbb\xbf" + "日本語é".encode(), "text/plain; charset=shift_jis"),
        (b"\xff\xfe" + "日本語é".encode("utf-16-le"), "text/plain"),
        (b"\xfe\xff" + "日本語é".encode("utf-16-be"), "text/html"),
        ("<meta charset=euc-jp>日本語é".encode("euc_jp", "replace").replace(b"?", "é".encode("euc_jp")), "text/html"),
        ("日本語é".encode("gb18030"), 'text/html; charset="GBK"'),
    ],
)
def test_letters_are_read_as_they_were_written(body: bytes, content_type: str) -> None:
    assert read_page(body, content_type).text == "日本語é"


@pytest.mark.parametrize(
    ("label", "text"),
    [("shift_jis", "日本語"), ("iso-2022-jp", "日本語"), ("euc-kr", "한국어"), ("big5", "繁體"), ("koi8-r", "Привет")],
)
def test_a_page_tells_its_own_encoding(label: str, text: str) -> None:
    head = f"<html><meta http-equiv='content-type' content='text/html; charset={label}'>"
    assert read_page((head + text).encode(label), "text/html").text == text


@pytest.mark.parametrize(
    "label", ["zip", "rot13", "punycode", "idna", "unicode_escape", "undefined", "utf-7", "x" * 99]
)
def test_an_encoding_that_is_none_of_the_web_is_not_believed(label: str) -> None:
    assert read_page(b"+AGE- \\x41", f"text/plain; charset={label}").text == "+AGE- \\x41"


@pytest.mark.parametrize("label", ["windows-1252", "windows-1253", "iso-8859-8", "tis-620"])
def test_bytes_that_are_no_letters_cost_no_more_than_letters(label: str) -> None:
    """Each of them was looked at for 200 ns, two million times, before anything else could go on"""
    codec = {"tis-620": "cp874", "iso-8859-8": "iso8859-8"}.get(label, label)
    every = bytes(range(32, 256)).replace(b"<", b"").replace(b"&", b"")
    assert read_page(every, f"text/html; charset={label}") == read_page(every.decode(codec, "replace").encode(), HTML)
    bad = bytes(byte for byte in range(256) if bytes([byte]).decode(codec, "replace") == "\ufffd")
    quickest = {}
    for unit in (bad, b"letters"):
        seconds = []
        for _ in range(3):
            began = time.process_time()
            read_page(unit * (MEGA // len(unit)), f"text/html; charset={label}")
            seconds.append(time.process_time() - began)
        quickest[unit] = min(seconds)
    assert quickest[bad] < 10 * quickest[b"letters"] + 0.02  # it is two or three times as much, and was fifty


def test_other_texts_are_shown_and_other_files_are_not() -> None:
    assert read_page(b'{"a":\n 1}', "application/json").text == '{"a": 1}'
    assert read_page(b"a,b\n1,2", "TEXT/CSV").text == "a,b 1,2"
    assert read_page(b"{}", "application/problem+json").text == "{}"
    assert read_page(b"<rss><title>News</title><item>x", "application/rss+xml") == WebPage("News", "x")
    for kind in ("image/png", "application/pdf", "application/octet-stream", "", "nonsense", "video/mp4"):
        assert read_page(b"<title>x</title>y", kind) == WebPage()


def test_an_excerpt_has_an_end() -> None:
    assert len(read("word " * 10_000).text) == EXCERPT_LENGTH_MAX - 1  # it would end with a space
    assert len(read("x" * 10_000).text) == EXCERPT_LENGTH_MAX
    assert len(read_page(b"x" * 10_000, "text/plain").text) == EXCERPT_LENGTH_MAX


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "<div>",
            "<p><font a>",
            "<b><p>",
            "<a x='\"",
            '<a x="',
            "<!--",
            "<!",
            "</",
            "<",
            "<script>",
            "<script></script>",
        ),
        *(
            "<svg>",
            "<template>",
            "<title>",
            "&amp",
            "&xxxxxxxxxxxxxxxxxxxxxxxxxxx",
            "=",
            " ",
            "\x01",
            "<a =",
            "<table>a",
        ),
    ],
)
def test_two_megabytes_of_anything_are_read_in_a_moment(unit: str) -> None:
    """400,000 nested `<div>` take a parser that builds a tree minutes"""
    markup = (unit * (MEGA // len(unit))).encode()
    began = time.process_time()
    read_page(markup, HTML)
    read_page(b"<a " + markup, HTML)
    assert time.process_time() - began < 30


@settings(deadline=None)  # a busy machine is no fault
@given(
    st.one_of(
        st.text(),
        st.lists(
            st.sampled_from(
                [
                    "<",
                    ">",
                    "<a",
                    "</",
                    "title",
                    "script",
                    "'",
                    '"',
                    "=",
                    "x",
                    " ",
                    "<!--",
                    "-->",
                    "<svg>",
                    "&#1;",
                    "\x00",
                    "\ud800",
                ]
            )
        ).map("".join),
    )
)
def test_any_page_gives_text_that_can_be_stored(markup: str) -> None:
    for kind in (HTML, "text/plain; charset=utf-16", "application/json"):
        page = read_page(markup.encode("utf-8", "surrogatepass"), kind)
        assert is_plain(page.title)
        assert is_plain(page.text)
        assert len(page.title) <= TITLE_LENGTH_MAX
        assert len(page.text) <= EXCERPT_LENGTH_MAX
