"""URLs, taken apart: what is ambiguous is refused, and numbers are addresses however they are written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core.web.addresses import refusal
from pyoco_server.core.web.targets import Discard, Exempt, Reach, Target, parse, parse_location

PUBLIC = Reach()
HTTP = Reach(allow_http=True)
EXEMPT = Reach(exempt=Exempt.read("127.0.0.1:8443"))


def target(text: str, reach: Reach = PUBLIC) -> Target:
    found = parse(text, reach)
    assert isinstance(found, Target), (text, found)
    return found


@pytest.mark.parametrize(
    ("text", "host", "path"),
    [
        ("https://example.com", "example.com", "/"),
        ("HTTPS://EXAMPLE.com/A", "example.com", "/A"),
        ("https://example.com:443/", "example.com", "/"),
        ("https://example.com:/", "example.com", "/"),
        ("https://example.com./x", "example.com", "/x"),
        ("https://example.com?q=1#frag@10.0.0.1", "example.com", "/?q=1"),
        ("https://example.com/#/@127.0.0.1", "example.com", "/"),
        ("https://example.com/a%20b?c=%E3%81%82", "example.com", "/a%20b?c=%E3%81%82"),
        ("https://example.com/日本?q=あ", "example.com", "/%E6%97%A5%E6%9C%AC?q=%E3%81%82"),
        ('https://example.com/{a}|"b"<c>', "example.com", "/%7Ba%7D%7C%22b%22%3Cc%3E"),
        ("https://日本語.jp/", "xn--wgv71a119e.jp", "/"),
        ("https://BÜCHER.example/", "xn--bcher-kva.example", "/"),
        ("https://under_score.example.com/", "under_score.example.com", "/"),
        ("https://[2606:4700::0:1111]/", "2606:4700::1111", "/"),
        ("https://8.8.8.8/", "8.8.8.8", "/"),
        ("https://134744072/", "8.8.8.8", "/"),
    ],
)
def test_a_url_names_one_host_and_one_path(text: str, host: str, path: str) -> None:
    found = target(text)
    assert (found.scheme, found.host, found.port, found.path) == ("https", host, 443, path)
    assert target(found.url) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "//example.com/",
        "/path",
        "https:",
        "https://",
        "https:///",
        "https:/example.com",
        "https:example.com",
        "https://?x",
        "https://user@example.com/",
        "https://user:pw@example.com/",
        "https://@example.com/",
        "https://example.com@127.0.0.1/",
        "https://127.0.0.1\\@example.com/",
        "https://example.com\\.evil.example/",
        "https://exa mple.com/",
        " https://example.com/",
        "https://example.com/ ",
        "https://example.com/a b",
        "https://example.com/\n",
        "https://example.com/\r\nHost: x",
        "https://exam\tple.com/",
        "https://example.com/\x00",
        "https://example.com/\x7f",
        "https://example.com/\u00a0",
        "https://example.com/\u200b",
        "https://example.com/\u202e",
        "https://example.com/\ud800",
        "https://example.com/%",
        "https://example.com/%zz",
        "https://example.com/?%4",
        "https://127%2e0.0.1/",
        "https://%31%32%37.0.0.1/",
        "https://example..com/",
        "https://.example.com/",
        "https://example.com../",
        "https://" + "a" * 64 + ".com/",
        "https://" + "a." * 127 + "com/",
        "https://ex*mple.com/",
        "https://[::1/",
        "https://::1/",
        "https://[::1]x/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[1.2.3.4]/",
        "https://[v1.x]/",
        "https://[]/",
        "https://example.com:65536/",
        "https://example.com:999999999/",
        "https://example.com:-1/",
        "https://example.com:443:443/",
        "https://example.com:４４３/",
        "https://example.com:x/",
        "https://1.2.3.4.5/",
        "https://256.1.1.1/",
        "https://1.2.65536/",
        "https://4294967296/",
        "https://0x100000000/",
        "https://09.1.1.1/",
        "https://example.0x1/",
        "https://example.1/",
        "https://1..2/",
        "https://faß.example/",
        "https://exam\u200dple.com/",
        "https://example.com\uff0f127.0.0.1/",
        "https://user\uff20example.com/",
        "https://" + "é" * 300 + "/",
    ],
)
def test_what_could_be_read_in_two_ways_is_no_url(text: str) -> None:
    """PRICED-143"""
    assert parse(text, PUBLIC) is Discard.INVALID_URL


@pytest.mark.parametrize(
    "text",
    [
        *("http://example.com/", "HTTP://127.0.0.1/", "ftp://x/", "file:///etc/passwd", "gopher://x:70/", "ws://x/"),
        *("data:text/html,x", "unix:/run/docker.sock", "wss://x/", "http+unix://x/", "mailto:a@b", "javascript:1"),
    ],
)
def test_only_https_is_reached(text: str) -> None:
    """PRICED-135"""
    assert parse(text, PUBLIC) is Discard.NON_HTTPS


def test_http_is_reached_where_it_is_allowed_and_nothing_else() -> None:
    """PRICED-135, PRICED-140"""
    assert target("http://example.com/", HTTP).port == 80
    assert target("http://example.com/", HTTP).url == "http://example.com/"
    assert target("https://example.com/", HTTP).port == 443
    assert parse("ftp://example.com/", HTTP) is Discard.NON_HTTPS
    assert parse("http://example.com:8080/", HTTP) is Discard.PORT_NOT_ALLOWED


@pytest.mark.parametrize("port", ["80", "22", "8443", "0", "65535", "00444"])
def test_other_ports_are_not_reached(port: str) -> None:
    """PRICED-140"""
    assert parse(f"https://example.com:{port}/", PUBLIC) is Discard.PORT_NOT_ALLOWED


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.0x0.0x0.0x1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0177.0.0.01", "127.0.0.1"),
        ("0000000000000000000177.1", "127.0.0.1"),
        ("１２７.０.０.１", "127.0.0.1"),
        ("127。0。0。1", "127.0.0.1"),
        ("①②⑦.0.0.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("0x", "0.0.0.0"),
        ("0.0.0.0", "0.0.0.0"),
        ("2852039166", "169.254.169.254"),
        ("0xA9FEA9FE", "169.254.169.254"),
        ("169.16689662", "169.254.169.254"),
        ("0251.0376.0251.0376", "169.254.169.254"),
        ("10.1", "10.0.0.1"),
        ("4294967295", "255.255.255.255"),
        ("[::1]", "::1"),
        ("[::ffff:127.0.0.1]", "::ffff:7f00:1"),
        ("[0:0:0:0:0:FFFF:7F00:1]", "::ffff:7f00:1"),
        ("[64:ff9b::127.0.0.1]", "64:ff9b::7f00:1"),
        ("[::]", "::"),
    ],
)
def test_a_number_is_an_address_however_it_is_written(host: str, address: str) -> None:
    """PRICED-144"""
    found = target(f"https://{host}/")
    assert found.is_literal
    assert found.host == address
    assert refusal(found.host) is not None


def test_an_exempt_place_is_exempt_as_it_is_written_and_in_no_other_way() -> None:
    assert target("https://127.0.0.1:8443/x", EXEMPT).is_exempt
    assert target("https://127.0.0.1:8443/x", EXEMPT).authority == "127.0.0.1:8443"
    for other in ("127.1:8443", "2130706433:8443", "localhost:8443", "127.0.0.1.:8443", "[::ffff:127.0.0.1]:8443"):
        assert parse(f"https://{other}/", EXEMPT) is Discard.PORT_NOT_ALLOWED
    assert parse("https://127.0.0.1:8444/", EXEMPT) is Discard.PORT_NOT_ALLOWED
    assert parse("http://127.0.0.1:8443/", EXEMPT) is Discard.NON_HTTPS
    assert parse("https://u@127.0.0.1:8443/", EXEMPT) is Discard.INVALID_URL
    assert not target("https://127.0.0.1/", EXEMPT).is_exempt
    assert target("https://[::1]:8443/", Reach(exempt=Exempt.read("[0:0::1]:8443"))).is_exempt
    assert Exempt.read("") is None


BASE = "https://example.com/a/b?c"


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/x", "https://example.com/x"),
        ("x", "https://example.com/a/x"),
        ("../x", "https://example.com/x"),
        ("../../../../x", "https://example.com/x"),
        ("?d", "https://example.com/a/b?d"),
        ("#d", "https://example.com/a/b?c"),
        ("//other.example/x", "https://other.example/x"),
        ("https://other.example", "https://other.example/"),
        ("/日本", "https://example.com/%E6%97%A5%E6%9C%AC"),
    ],
)
def test_a_redirect_may_be_relative(location: str, url: str) -> None:
    """PRICED-138"""
    found = parse_location(location, target(BASE), PUBLIC)
    assert isinstance(found, Target)
    assert found.url == url


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", Discard.INVALID_URL),
        ("http://example.com/", Discard.NON_HTTPS),
        ("//user@example.com/", Discard.INVALID_URL),
        ("https://example.com:8443/", Discard.PORT_NOT_ALLOWED),
        ("//example.com:22/", Discard.PORT_NOT_ALLOWED),
        ("https:x", Discard.INVALID_URL),
        ("//[::1", Discard.INVALID_URL),
        ("/a b", Discard.INVALID_URL),
        ("\\\\evil.example", Discard.INVALID_URL),
        ("/\\evil.example", Discard.INVALID_URL),
        ("ht\ttps://x", Discard.INVALID_URL),
        ("file:///etc/passwd", Discard.NON_HTTPS),
        ("/" + "x" * 20_000, Discard.INVALID_URL),
        ("//exam\uff0fple.com", Discard.INVALID_URL),
    ],
)
def test_a_redirect_is_judged_as_any_url(location: str, why: Discard) -> None:
    """PRICED-138"""
    assert parse_location(location, target(BASE), PUBLIC) is why


@settings(deadline=None)  # a busy machine is no fault
@given(st.one_of(st.text(max_size=80), st.text(max_size=60).map(lambda text: f"https://{text}")))
def test_any_text_is_parsed_or_refused_and_what_is_parsed_can_be_sent(text: str) -> None:
    found = parse(text, PUBLIC)
    if isinstance(found, Target):
        assert found.url.isascii()
        assert found.url.isprintable()
        assert " " not in found.url
        assert target(found.url) == found
    parse_location(text, target(BASE), PUBLIC)


@settings(deadline=None)  # a busy machine is no fault
@given(st.integers(0, 2**32 - 1))
def test_every_spelling_of_a_number_is_one_address(number: int) -> None:
    """PRICED-144"""
    high, low = divmod(number, 2**24)
    hosts = {target(f"https://{text}/").host for text in (f"{number}", f"{number:#x}", f"0{number:o}", f"{high}.{low}")}
    assert len(hosts) == 1
