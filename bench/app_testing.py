"""`app.testing()`: runs per second in the process of a test, and what a block itself costs."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.report import heading, median, spread, table
from bench.stack import Stack
from pyoco_server import App, task

_ROUNDS = 5
_RUNS = 300

app = App("bench")


@task
def double(number: int) -> int:
    return 2 * number


@app.flow
def doubled(number: int) -> int:
    return double(number)


@app.flow(schedule={"every": "1m"})
def minutely() -> int:
    return double(1)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _one_by_one() -> None:
    for number in range(_RUNS):
        doubled.submit(number).result()


def _mapped() -> None:
    doubled.map({"number": number} for number in range(_RUNS)).results()


def _empty() -> None:
    with app.testing():
        pass


def main(_: Stack) -> None:
    heading(f"app.testing(): runs of one small task per second, {_RUNS} in each of {_ROUNDS} rounds")
    rates: dict[str, list[float]] = {"submit().result()": [], "map().results()": [], "ticks of advance()": []}
    _empty()  # imports
    blocks = []
    for _round in range(_ROUNDS):
        blocks.append(_seconds(_empty) * 1000)
        with app.testing() as t:
            rates["submit().result()"].append(_RUNS / _seconds(_one_by_one))
            rates["map().results()"].append(_RUNS / _seconds(_mapped))
            rates["ticks of advance()"].append(_RUNS / _seconds(lambda: t.advance(_RUNS * 60)))
    rows = [["", "per second", "lowest to highest"]]
    rows += [[name, f"{median(values):,.0f}", spread(values)] for name, values in rates.items()]
    table(rows)
    print(f"an empty block: {median(blocks):.0f} ms ({spread(blocks)})")
