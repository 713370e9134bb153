"""Why a run has no result or output to read."""

from __future__ import annotations

from pyoco_server.errors.base import PyocoError
from pyoco_server.errors.requests import Conflict, NotFound

__all__ = ["ResultGone", "ResultNotEncodable", "ResultNotFound", "ResultNotReady", "ResultTooLarge", "ValueMissing"]


class ValueMissing(PyocoError):
    """Base of the reasons why a run has no result or output to read."""

    def __init__(self, message: str, **members: object) -> None:
        super().__init__(message)
        #: Additional members of the response.
        self.members = members


class ResultNotFound(ValueMissing, NotFound):
    """The run has no such task, or is of a kind that has no such value."""

    number = 53
    phrase = "no such result"


class ResultNotReady(ValueMissing, Conflict):
    """The run or task has not ended, or not ended with a value."""

    number = 53
    phrase = "no result"


class ResultNotEncodable(ValueMissing, Conflict):
    """The value could not be encoded."""

    number = 54
    phrase = "value could not be encoded"


class ResultTooLarge(ValueMissing, Conflict):
    """The value exceeded a bound."""

    number = 55
    phrase = "value is too large"


class ResultGone(ValueMissing):
    """The value was stored, or should have been, and is no longer there."""

    number = 56
    phrase = "stored value is no longer there"
