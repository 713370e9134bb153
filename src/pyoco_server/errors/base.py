"""The root of all errors, and the problems of an input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyoco_server.errors.catalogue import CATALOGUE, Text

__all__ = ["Problem", "PyocoError"]


@dataclass(frozen=True)
class Problem:
    """One problem of an input: its location, a message, and a type for programs."""

    loc: tuple[str | int, ...]
    msg: str
    type: str = "invalid"
    #: For an unknown member: the known name that was probably meant (STRICT-4).
    nearest: str | None = None
    #: The message in Japanese, where the contract asks for it.
    msg_ja: str | None = None
    #: Of a cron expression: the name of its field, and the character in it, from 0.
    field: str | None = None
    position: int | None = None


class PyocoError(Exception):
    """Something went wrong."""

    #: The number of this error's line in the catalogue.
    number: ClassVar[int] = 25
    #: The short English phrase of an HTTP error body (section 5 of the contract).
    phrase: ClassVar[str] = "internal error"

    def __init__(self, message: str = "", *, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message or (self.__doc__ or "").split("\n", 1)[0])
        self.problems = problems

    @property
    def text(self) -> Text:
        return CATALOGUE[self.number]
