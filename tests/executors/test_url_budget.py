"""The url pack and its reservation: it stops before the first connection that would cost more."""

from __future__ import annotations

from typing import Any

import pytest

from support.priced.url_packs import BASE, EACH, authority, context, patience, reaching, reasons, run, site
from support.priced.url_sites import Site

__all__ = ["authority", "patience", "site"]


def stopped(done: int, of: int) -> dict[str, Any]:
    return {"reason": "BUDGET", "done": done, "of": of}


@pytest.mark.parametrize(("reserved", "fetched"), [(7_000, 1), (8_900, 1), (9_000, 2), (23_000, 9), (28_900, 11)])
def test_it_stops_before_the_first_url_that_the_reservation_does_not_cover(
    site: Site, reserved: int, fetched: int
) -> None:
    """SAFE-2: always the first URLs are fetched, though eight are fetched at a time"""
    urls = [site.url(f"/?{number}") for number in range(12)]
    result = run(reaching(site), urls, context(reserved_usd_micros=reserved))
    assert [row["url"] for row in result.data["results"]] == urls[:fetched]
    assert result.discard_log == [{"url": url, "reason": "BUDGET"} for url in urls[fetched:]]
    assert result.data["stopped"] == stopped(fetched, 12)
    assert result.actual_cost_usd_micros == BASE + EACH * fetched <= reserved
    assert site.connections == fetched


def test_a_reservation_for_all_of_them_stops_nothing(site: Site) -> None:
    """SAFE-2"""
    result = run(reaching(site), [site.url()] * 12, context(reserved_usd_micros=BASE + 12 * EACH))
    assert (len(result.data["results"]), "stopped" in result.data) == (12, False)


def test_urls_without_a_connection_cost_nothing_of_the_reservation(site: Site) -> None:
    """SAFE-2: only a connection is paid for; a URL that needs none leaves its share to the next one"""
    free = ["nonsense", "https://10.0.0.1/", "http://example.com/"] * 4
    urls = [*free, site.url("/?1"), "nonsense", site.url("/?2"), "nonsense"]
    result = run(reaching(site), urls, context(reserved_usd_micros=BASE + EACH))
    assert [row["url"] for row in result.data["results"]] == [site.url("/?1")]
    assert result.data["stopped"]["reason"] == "BUDGET"
    left = [row["url"] for row in result.discard_log if row["reason"] == "BUDGET"]
    assert left == urls[result.data["stopped"]["done"] :]
    assert site.url("/?2") in left
    assert result.data["stopped"]["of"] == len(urls)
    assert result.actual_cost_usd_micros == BASE + EACH


def test_urls_beyond_max_urls_are_not_among_those_that_the_money_did_not_reach(site: Site) -> None:
    """SAFE-2, PRICED-146"""
    result = run(reaching(site), [site.url()] * 4, context(reserved_usd_micros=BASE + EACH), max_urls=2)
    assert [row["reason"] for row in result.discard_log] == ["BUDGET", "OVER_MAX_URLS", "OVER_MAX_URLS"]
    assert result.data["stopped"] == stopped(1, 2)


@pytest.mark.parametrize("reserved", [100, BASE, BASE + EACH - 100])
def test_where_not_even_one_url_is_covered_none_is_fetched(site: Site, reserved: int) -> None:
    """SAFE-2: the gateway refuses such a reservation; the prices of the worker may be higher"""
    result = run(reaching(site), [site.url()] * 3, context(reserved_usd_micros=reserved))
    assert (result.data["results"], result.data["stopped"]) == ([], stopped(0, 3))
    assert site.connections == 0


def test_connections_that_cost_nothing_are_not_limited(site: Site) -> None:
    """SAFE-2"""
    execute = reaching(site, price_url_each_usd_micros=0)
    result = run(execute, [site.url()] * 12, context(reserved_usd_micros=BASE))
    assert (len(result.data["results"]), "stopped" in result.data) == (12, False)


def test_what_the_time_does_not_reach_is_not_said_to_lack_money(site: Site) -> None:
    """SAFE-2, PRICED-142: the reservation covers one of them, and the time is over first"""
    result = run(reaching(site), [site.url()] * 3, context(4.9, reserved_usd_micros=BASE + EACH))
    assert reasons(result) == ["TIMEBOX"] * 3
    assert "stopped" not in result.data
