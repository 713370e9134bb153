"""An app as a user writes it. What a type checker says about it is a part of the test: `assert_type`, and the refusals
that have to be ignored."""

from __future__ import annotations

import dataclasses
import enum
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, assert_type

from pyoco_server import App, AsyncRunHandle, RunHandle, RunSet, ends, task

app = App("reports")


class Refused(Exception):
    """Raised by a flow on purpose."""

    def __init__(self, code: int, at: datetime) -> None:
        super().__init__(code, at)
        self.code = code


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclasses.dataclass
class Order:
    number: int
    due: datetime
    prices: list[Decimal]


@task
def fetch(url: str) -> bytes:
    """The content of a page."""
    return url.encode()


@task
def count(fetch: bytes) -> int:
    return len(fetch)


@task
def double(count: int) -> str:
    return str(2 * count)


@task
def total(order: Order, size: Size = Size.SMALL) -> dict[str, Decimal]:
    assert isinstance(order, Order)
    assert isinstance(size, Size)
    return {size.value: sum(order.prices, Decimal(0))}


@task
def postpone(order: Order) -> Order:
    return dataclasses.replace(order, due=order.due.replace(year=order.due.year + 1))


@task
def refuse(code: int) -> None:
    print("refusing", file=sys.stderr)
    raise Refused(code, datetime(2026, 1, 2))  # noqa: DTZ001  (naive instants stay naive)


@task
def repeat(length: int) -> bytes:
    return b"\x00\xff" * length


@app.flow
def measure(url: str, customer: str = "") -> int:
    """Measure a page.

    It takes its time.
    """
    return fetch >> count


@app.flow(name="twice", tags=["nightly"], retry="2 times, fixed, 1s", timeout="5m", tool=True)
def measured_twice(url: str) -> str:
    return fetch >> count >> double


@app.flow
def fetched(url: str) -> bytes:
    return fetch(url)


@app.flow
def both(order: Order, size: Size = Size.LARGE) -> dict[str, Any]:
    return ends(total, postpone)


@app.flow
def next_year(order: Order) -> Order:
    return postpone(order)


@app.flow
def refused(code: int = 7) -> None:
    return refuse(code)


@app.flow
def large(length: int) -> bytes:
    return repeat(length)


@task
def line(count: int, checksum: int) -> str:
    return f"{count} {checksum}"


@task
def checksum(fetch: bytes) -> int:
    return sum(fetch)


@app.flow
def joined(url: str) -> str:
    return fetch >> [count, checksum] >> line


@app.flow
def called_by_name(address: str) -> int:
    return count(fetch(address))


def types_are_known() -> None:
    """Checked by mypy, never called."""
    run = measure.submit(url="https://example.com", customer="a")
    assert_type(run, RunHandle[int])
    assert_type(run.result(timeout=1), int)
    assert_type(measure(url="x"), int)
    assert_type(measure.options(delay="10m").submit("x").result(), int)
    assert_type(measure.map([{"url": "x"}]), RunSet[int])
    assert_type(measured_twice.submit("x").result(), str)
    assert_type(both.submit(Order(1, datetime.now(UTC), [])).result(), dict[str, Any])
    assert_type(fetch("x"), bytes)
    measure.submit(link="x")  # type: ignore[call-arg]
    measure.submit(url=1)  # type: ignore[arg-type]
    measure.submit()  # type: ignore[call-arg]

    @app.flow
    def wrong(url: str) -> str:
        return fetch >> count  # type: ignore[return-value]


async def coroutines_are_known() -> None:
    run = await measure.asubmit(url="https://example.com")
    assert_type(run, AsyncRunHandle[int])
    assert_type(await run.result(), int)
    await measure.asubmit(url=b"x")  # type: ignore[arg-type]
