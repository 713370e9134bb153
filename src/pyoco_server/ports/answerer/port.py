"""Somebody who answers questions: a model, mostly, somewhere else."""

from __future__ import annotations

import threading
from typing import Protocol

from pyoco_server.core.answers.answer import Answer, Ask

__all__ = ["Answerer", "AnswererRefused", "AnswererUnavailable", "BadAnswer", "NoAnswer", "NobodyWaits"]


class NoAnswer(Exception):
    """There is none. The owner of the run reads the text: no key, no address, no question and no answer is in it."""

    def __init__(self, text: str, *, is_operators_fault: bool = False) -> None:
        super().__init__(text)
        #: The answerer is away, or does not take our key, address or model: the run costs nothing (SAFE-3).
        self.is_operators_fault = is_operators_fault


class AnswererUnavailable(NoAnswer):
    """Nobody answered, or not in time. The same question may be answered later."""


class AnswererRefused(NoAnswer):
    """It was asked, and does not want to."""


class BadAnswer(NoAnswer):
    """What it said is not an answer that can be read."""


class NobodyWaits(NoAnswer):
    """The run was given up meanwhile."""


class Answerer(Protocol):
    def answer(self, ask: Ask, seconds: float, cancelled: threading.Event) -> Answer:
        """Returns, or raises NoAnswer, before so many seconds are over, and soon after `cancelled` is set."""
