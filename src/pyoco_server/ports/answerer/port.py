"""The port to a service that answers questions: usually a remote model."""

from __future__ import annotations

import threading
from typing import Protocol

from pyoco_server.core.answers.answer import Ask, DocumentAnswer

__all__ = ["Answerer", "AnswererRefused", "AnswererUnavailable", "BadAnswer", "NoAnswer", "NobodyWaits"]


class NoAnswer(Exception):
    """There is no answer. The owner of the run reads the text, so it contains no key, address, question or answer."""

    def __init__(self, text: str, *, is_operators_fault: bool = False) -> None:
        super().__init__(text)
        #: The answerer is unavailable, or rejects our key, address or model: the run costs nothing (SAFE-3).
        self.is_operators_fault = is_operators_fault


class AnswererUnavailable(NoAnswer):
    """No answer, or not in time. A retry may succeed."""


class AnswererRefused(NoAnswer):
    """The answerer received the question and refused it."""


class BadAnswer(NoAnswer):
    """The response cannot be parsed as an answer."""


class NobodyWaits(NoAnswer):
    """The run was abandoned in the meantime."""


class Answerer(Protocol):
    def answer(self, ask: Ask, seconds: float, cancelled: threading.Event) -> DocumentAnswer:
        """Return the answer or raise NoAnswer, within `seconds`, and soon after `cancelled` is set."""
