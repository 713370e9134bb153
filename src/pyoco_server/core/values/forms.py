"""Names that the encoder and the decoder of values share."""

from __future__ import annotations

from typing import Final

__all__ = ["DIGITS_MAX", "KIND", "VALUE"]

#: A JSON object with exactly these two members stands for a value that JSON cannot hold.
KIND: Final = "$pyoco"
VALUE: Final = "value"
#: Integers are converted this many digits at a time; Python's own limit is 4300.
DIGITS_MAX: Final = 4000
