"""What callers were told is held against itself: the book complains by itself about what can never be."""

from __future__ import annotations

import math

from storm.book import Book, Kind

DONE = frozenset({"COMPLETED"})
ANY = frozenset({"COMPLETED", "FAILED"})


def test_a_key_that_stands_for_two_runs_is_complained_about() -> None:
    book = Book()
    book.accept("r1", Kind.FLOW, "rich", "k", DONE)
    book.accept("r1", Kind.FLOW, "rich", "k", DONE)
    book.accept("r2", Kind.FLOW, "poor", "k", DONE)
    assert book.wrong == []
    book.accept("r3", Kind.FLOW, "rich", "k", DONE)
    assert len(book.wrong) == 1


def test_a_second_end_is_complained_about_once_whoever_saw_it() -> None:
    book = Book()
    run = book.accept("r1", Kind.PROGRAM, "rich", "k", DONE)
    for way in ("read", "list", "watch"):
        book.saw("r1", "COMPLETED", way, 0.0)
    assert (book.wrong, run.end) == ([], "COMPLETED")
    for way in ("list", "read", "list"):
        book.saw("r1", "FAILED", way, 0.0)
    assert len(book.wrong) == 1


def test_an_older_state_after_an_end_is_wrong_of_one_store_and_counted_of_three() -> None:
    """A look that had begun before the end was known may show what it likes."""
    books = [Book(is_strict=True), Book(is_strict=False)]
    for book in books:
        book.accept("r1", Kind.FLOW, "rich", "k", DONE)
        book.saw("r1", "COMPLETED", "read", 0.0)
        book.saw("r1", "RUNNING", "read", 0.0)
        assert (book.wrong, book.stale.total()) == ([], 0)
        book.saw("r1", "RUNNING", "list", math.inf)  # from an index
        book.saw("r1", "RUNNING", "read", math.inf)
    assert [len(book.wrong) for book in books] == [1, 0]
    assert [book.stale["read"] for book in books] == [1, 1]


def test_a_kind_works_again_when_a_run_accepted_since_has_ended_as_it_should() -> None:
    book = Book()
    early = book.accept("r1", Kind.FLOW, "rich", "k1", DONE)
    book.saw("r1", "COMPLETED", "read", 0.0)
    since = early.at + 1.0
    assert book.reached(since)[Kind.FLOW] == (None, None)
    for run_id, at in (("r2", since + 1), ("r3", since + 2)):
        book.accept(run_id, Kind.FLOW, "rich", run_id, DONE).at = at
    book.saw("r2", "FAILED", "read", 0.0)
    assert book.reached(since)[Kind.FLOW] == (since + 1, None)
    book.saw("r3", "COMPLETED", "read", 0.0)
    assert book.reached(since)[Kind.FLOW] == (since + 1, book.runs["r3"].ended_at)


def test_packs_that_only_fail_show_nothing_that_works() -> None:
    book = Book()
    for run_id, kind in (("r1", Kind.PACK), ("r2", Kind.PROGRAM)):
        book.accept(run_id, kind, "rich", run_id, ANY)
        book.saw(run_id, "FAILED", "read", 0.0)
    reached = book.reached(0.0)
    assert reached[Kind.PACK][1] is None
    assert reached[Kind.PROGRAM][1] is not None
    book.accept("r3", Kind.PACK, "rich", "r3", ANY)
    book.saw("r3", "COMPLETED", "priced", 0.0)
    assert book.reached(0.0)[Kind.PACK][1] is not None
