"""Runs as CSV: what a row says, and what a spreadsheet must not execute."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from contracts.runs import a_run
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import Owner
from pyoco_server.core.run_table import param_names, table_text


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_row_has_times_error_and_a_column_for_each_param() -> None:
    run = claim(
        a_run(params={"city": "東京", "n": 3, "deep": {"a": [1]}}, tags=("default", "x", "y")), Owner("w", "i"), "1", 9
    )
    runs = [conclude(run, Failed(message='broke, "badly"'), 10.5), conclude(replace(run, params={}), Completed(), 11.0)]
    first, second = rows_of(table_text(runs, param_names(runs), with_head=True))
    assert (first["params.city"], first["params.n"], first["params.deep"]) == ("東京", "3", '{"a":[1]}')
    assert (first["status"], first["labels"], first["error"]) == ("FAILED", "x y", 'broke, "badly"')
    assert (first["start_time"], first["end_time"]) == (
        "1970-01-01T00:00:09.000+00:00",
        "1970-01-01T00:00:10.500+00:00",
    )
    assert (second["params.city"], second["error"]) == ("", "")


def test_no_cell_is_a_formula_and_numbers_stay_numbers() -> None:
    params = {
        "=cmd()": "=1+1",
        "at": "@SUM(A1)",
        "tab": "\t=1",
        "minus": "-2+3",
        "low": -2.5,
        "far": "-inf",
        "plus": "+81 3",
    }
    run = a_run(params=params, flow_name="=HYPERLINK()")
    text = table_text([run], param_names([run]), with_head=True)
    (row,) = rows_of(text)
    assert row["flow_name"] == "'=HYPERLINK()"
    cells = [row[f"params.{name}"] for name in params]
    assert cells == ["'=1+1", "'@SUM(A1)", "'\t=1", "'-2+3", "-2.5", "-inf", "'+81 3"]
    assert "params.=cmd()" in row  # it begins with a letter


def test_cells_and_columns_are_bounded() -> None:
    run = a_run(params={f"p{n}": "x" * 5000 for n in range(200)})
    (row,) = rows_of(table_text([run], param_names([run]), with_head=True))
    assert len(row) == 10 + 50 + 1
    assert row["params.p0"] == "x" * 1023 + "…"


def test_of_a_withheld_run_only_what_is_shown_is_in_the_table() -> None:
    """SAFE-5"""
    text = table_text([{"run_id": "r", "status": "FAILED", "redacted": True}], ["city"], with_head=False)
    assert text.strip() == "r,FAILED,,,,,,,,"
