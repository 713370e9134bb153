"""When to ask again, as a table. No server, no clock."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.client.calls import Repeat
from pyoco_server.client.faults import AnswerDamaged, NotAGateway, Tries, failure_of
from pyoco_server.client.retry import Failure, How, Patience, backoff_seconds, read_retry_after

UNSENT, LOST = Failure(How.UNSENT), Failure(How.LOST)


def refused(status: int, after: float | None = None) -> Failure:
    return Failure(How.REFUSED, status, after)


@pytest.mark.parametrize(
    ("failure", "repeats"),
    [
        (UNSENT, {Repeat.SAFE, Repeat.UNSENT}),
        (LOST, {Repeat.SAFE}),
        (refused(502), {Repeat.SAFE}),
        (refused(503), {Repeat.SAFE}),
        (refused(504), {Repeat.SAFE}),
        (refused(429, 0.1), {Repeat.SAFE, Repeat.UNSENT}),
        (refused(429), set()),
        (refused(408), set()),
        (refused(409), set()),
        (refused(500), set()),
        (refused(302), set()),
    ],
)
def test_what_may_be_asked_again(failure: Failure, repeats: set[Repeat]) -> None:
    found = {repeat for repeat in Repeat if Patience().pause(repeat, failure, 1, 0.0, 0.5) is not None}
    assert found == repeats


@given(
    failure=st.sampled_from([UNSENT, LOST, refused(503), refused(503, 2.0), refused(429, 1.0)]),
    tries=st.integers(1, 10),
    elapsed=st.floats(0, 100),
    chance=st.floats(0, 1),
    retries=st.integers(0, 10),
    seconds=st.floats(0, 100),
)
def test_no_try_begins_too_late_and_none_too_often(
    failure: Failure, tries: int, elapsed: float, chance: float, retries: int, seconds: float
) -> None:
    pause = Patience(retries, seconds).pause(Repeat.SAFE, failure, tries, elapsed, chance)
    if pause is not None:
        assert tries <= retries
        assert elapsed + pause < seconds
        assert pause >= (failure.retry_after or 0)
        assert pause > 0


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_grow_to_five_seconds_and_are_never_none(tries: int, chance: float) -> None:
    assert 0.125 <= backoff_seconds(tries, chance) <= 5.0
    assert backoff_seconds(tries, 0) <= backoff_seconds(tries + 1, 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        (" 0 ", 0.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("30", 30.0),
        ("31", 30.0),
        ("86400", 30.0),
        ("9" * 400, 30.0),
        ("Thu, 01 Jan 1970 00:01:20 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 30.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 30.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
        ("Thu, 01 Jan 99999 00:00:10 GMT", None),
    ],
)
def test_a_server_says_when_in_seconds_or_by_date(text: str | None, seconds: float | None) -> None:
    """And no server puts a program to sleep for a day"""
    assert read_retry_after(text, now=60.0) == seconds


@given(st.text())
def test_any_header_is_read_without_a_crash(text: str) -> None:
    found = read_retry_after(text, now=0.0)
    assert found is None or 0 <= found <= 30


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (httpx.ConnectError("x"), How.UNSENT),
        (httpx.ConnectTimeout("x"), How.UNSENT),
        (httpx.PoolTimeout("x"), How.UNSENT),
        (httpx.ReadTimeout("x"), How.LOST),
        (httpx.ReadError("x"), How.LOST),
        (httpx.WriteError("x"), How.LOST),
        (httpx.WriteTimeout("x"), How.LOST),
        (httpx.RemoteProtocolError("x"), How.LOST),
        (httpx.DecodingError("x"), How.LOST),
        (AnswerDamaged("x"), How.LOST),
        (NotAGateway("x"), None),
        (httpx.LocalProtocolError("x"), None),
        (httpx.UnsupportedProtocol("x"), None),
        (httpx.TooManyRedirects("x"), None),
    ],
)
def test_every_error_of_the_library_has_its_place(error: httpx.HTTPError, how: How | None) -> None:
    failure = failure_of(error, 0.0)
    assert (failure.how if failure else None) is how


def failed(tries: Tries, error: httpx.HTTPError, at: float = 0.0) -> float:
    return tries.pause_after(error, Repeat.SAFE, at=at, now=0.0, chance=0.5)


@pytest.mark.parametrize(
    ("seconds", "timeout", "at", "left"),
    [(30, 30, 20, 10), (30, 30, 29.9, 1), (60, 30, 20, 30), (60, 30, 40, 20), (5, 30, 4, 26), (30, 0.5, 29, 0.5)],
)
def test_a_later_try_has_the_time_that_is_left(seconds: float, timeout: float, at: float, left: float) -> None:
    """A call lasts no longer than the larger of both; a second is left for a last try"""
    tries = Tries(Patience(9, seconds), began=100.0)
    assert tries.timeout_seconds(timeout, 100.0 + at) == timeout, "the first one has all of it"
    failed(tries, httpx.ConnectError("x"), at=100.0)
    assert tries.timeout_seconds(timeout, 100.0 + at) == pytest.approx(left)


def test_who_has_time_tries_as_often_as_it_takes() -> None:
    patience = Patience(0, 5.0).lasting(600.0)
    assert patience.pause(Repeat.SAFE, UNSENT, 1000, 599.0 - 5.0, 0.0) == 5.0
    assert patience.pause(Repeat.SAFE, UNSENT, 1000, 599.0, 0.0) is None
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="negative"):
            patience.lasting(seconds)


class TestTheCallersTime:
    """FLOW-416: it bounds every try, and when it is up that is a TimeoutError"""

    def test_no_try_is_given_more_than_is_left(self) -> None:
        tries = Tries(Patience(9, 30.0), began=100.0, ends_at=102.0)
        assert tries.timeout_seconds(30.0, 100.0) == 2.0, "the first one, too"
        failed(tries, httpx.ConnectError("x"), at=100.5)
        assert tries.timeout_seconds(30.0, 101.5) == 0.5
        assert 0 < tries.timeout_seconds(30.0, 105.0) < 0.1

    @pytest.mark.parametrize("retries", [0, 9])
    def test_a_try_that_is_cut_off_by_it_says_so(self, retries: int) -> None:
        tries = Tries(Patience(retries, 30.0), began=100.0, ends_at=102.0)
        with pytest.raises(TimeoutError, match="ReadTimeout") as raised:
            failed(tries, httpx.ReadTimeout(""), at=102.0)
        assert isinstance(raised.value.__cause__, httpx.ReadTimeout)

    def test_no_pause_goes_beyond_it(self) -> None:
        tries = Tries(Patience(9, 30.0), began=100.0, ends_at=102.0)
        with pytest.raises(TimeoutError, match="refused"):
            failed(tries, httpx.ConnectError("refused"), at=101.95)

    def test_what_would_be_final_anyway_is_told_as_it_is(self) -> None:
        tries = Tries(Patience(9, 30.0), began=100.0, ends_at=102.0)
        request = httpx.Request("GET", "http://x")
        error = httpx.HTTPStatusError("no", request=request, response=httpx.Response(404, request=request))
        with pytest.raises(httpx.HTTPStatusError):
            failed(tries, error, at=102.5)


def test_only_a_try_that_may_have_arrived_makes_the_next_one_doubtful() -> None:
    """Whoever finds nothing after a connection that was never made has found nothing"""
    tries = Tries(Patience(9, 30.0), began=0.0)
    doubts = []
    for error in (httpx.ConnectError("x"), httpx.ReadTimeout("x"), httpx.ConnectError("x")):
        failed(tries, error)
        doubts.append(tries.were_unclear)
    assert doubts == [False, True, True], "what has happened has happened"


def test_the_last_failure_is_the_result() -> None:
    tries = Tries(Patience(1, 30.0), began=0.0)
    failed(tries, httpx.ConnectError("first"))
    with pytest.raises(httpx.ReadTimeout, match="second"):
        failed(tries, httpx.ReadTimeout("second"))
