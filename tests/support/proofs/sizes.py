"""How large an experiment is: seconds for `make test`, the whole of it for `make proofs` (PYOCO_PROOFS=full)."""

from __future__ import annotations

import os
import random
from typing import Final, TypeVar

import pytest

__all__ = ["IS_FULL", "SEED", "full_only", "size"]

T = TypeVar("T")

IS_FULL: Final = os.environ.get("PYOCO_PROOFS") == "full"

#: Of everything that is left to chance; another one each time, unless PYOCO_PROOFS_SEED says which.
SEED: Final = int(os.environ.get("PYOCO_PROOFS_SEED") or random.SystemRandom().randrange(2**32))

#: For what has no small form, or shares that of another proof.
full_only = pytest.mark.skipif(not IS_FULL, reason="only in `make proofs`")


def size(quick: T, full: T) -> T:
    return full if IS_FULL else quick
