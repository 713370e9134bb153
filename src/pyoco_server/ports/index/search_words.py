"""The words by which a run is found, and those of a search (CLI-16).

Both are normalized here and stored separated by spaces, so SQLite's tokenizer has nothing left to decide, and a text
comparison gives the same result as its index.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyoco_server.core.run import PACK, Run

__all__ = ["MARKS", "Alternative", "facet", "id_word", "is_known_by_prefix", "search_terms", "search_words"]

#: How much text of a run is searched: of its names and labels, of its params, and of its error.
_NAMES_MAX = 1024
_PARAMS_MAX = 1024
_ERROR_MAX = 1024
_PARAM_VALUES_MAX = 100
_NUMBER_BITS_MAX = 256
#: A longer word is cut, in a run and in a search.
_WORD_MAX = 64
#: Words of letters are also found by their beginning, from this length on.
_PREFIX_MIN = 3
_ID_PREFIX_MIN = 4

# Characters that are no letters mark what no text contains. The tokenizer takes them as letters (`MARKS`).
_FACET = "#"
_ID = "$"
#: Begins the words of a priced run that only a caller of its tenant may search (SAFE-5).
_OWNER_ONLY = "%"
#: Between two texts, so that no phrase continues from one into the next.
_BORDER = "~"
MARKS = _FACET + _ID + _OWNER_ONLY + _BORDER

#: Chinese and Japanese are written without spaces: each character is a word, and several are a phrase.
_CHARACTERS = "\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORDS = re.compile(rf"[{_CHARACTERS}]|[^\W_{_CHARACTERS}]+")
_ASCII_WORDS = re.compile("[a-z0-9]+")
_RUN_ID = re.compile("[0-9a-f][0-9a-f-]{3,35}")


@dataclass(frozen=True)
class Alternative:
    """One way in which a word of a search may occur: as this sequence of words, or as the beginning of its last one."""

    text: str
    is_prefix: bool
    #: It is the beginning of an id.
    is_id: bool = False


def search_words(run: Run) -> str:
    """Return the searchable words of a run, separated and enclosed by spaces. O(1): only so much text is read.

    Of a priced run, only what everybody may see is searchable by everybody (`redacted`).
    """
    ids = [id_word(run.run_id)]
    names: list[object] = [run.tag, *(tag for tag in run.tags if tag != run.tag)]
    if run.program is not None:
        ids.append(id_word(run.program.job_id))
        names += [run.program.client_id, run.program.group]
    texts = [
        _joined(names, _NAMES_MAX),
        _joined(_values(run.params), _PARAMS_MAX),
        _joined([run.error or ""], _ERROR_MAX),
    ]
    if run.kind == PACK:
        texts = [_marked(text) for text in texts]
    shown = [*ids, _joined([run.flow_name], _NAMES_MAX), *texts]
    return f" {f' {_BORDER} '.join(filter(None, shown))} "


def id_word(run_id: object) -> str:
    return _ID + "".join(_split(str(run_id)))[:_WORD_MAX]


@functools.lru_cache(maxsize=4096)
def facet(name: str, value: object) -> str:
    """Return the word of a run that has this value of a filter. Values are compared exactly; a digest keeps it short.

    Different values may have the same word: the row decides.
    """
    digest = hashlib.blake2b(str(value).encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{_FACET}{name}{digest}"


def is_known_by_prefix(word: str) -> bool:
    """Whether a word of a run may be searched by its beginning: it has letters only."""
    letters = word.removeprefix(_OWNER_ONLY)
    return len(letters) >= _PREFIX_MIN and letters.isalpha()


def search_terms(text: str, is_owner: bool) -> list[list[Alternative]]:
    """Return what each word of a search may be. All of them are required. Empty: the search has no words.

    `is_owner`: the caller sees everything about the runs that are searched.
    """
    found: dict[str, list[Alternative]] = {}
    for part in text.split():
        words = _split(part)
        if words:
            found.setdefault(" ".join(words), _alternatives(words, part.lower(), is_owner))
    return list(found.values())


def _alternatives(words: list[str], part: str, is_owner: bool) -> list[Alternative]:
    is_prefix = is_known_by_prefix(words[-1])
    found = [Alternative(" ".join(words), is_prefix)]
    if is_owner:
        found.append(Alternative(_marked(" ".join(words)), is_prefix))
    if _RUN_ID.fullmatch(part) and len("".join(words)) >= _ID_PREFIX_MIN:
        found.append(Alternative(_ID + "".join(words), is_prefix=True, is_id=True))
    return found


def _split(text: str) -> list[str]:
    if text.isascii():
        found = _ASCII_WORDS.findall(text.lower())
    else:
        found = _WORDS.findall(unicodedata.normalize("NFKC", text).casefold())
    return [word[:_WORD_MAX] for word in found]


def _joined(values: Iterable[object], length_max: int) -> str:
    """Return the words of these texts until so many characters are read."""
    left = length_max
    words: list[str] = []
    for value in values:
        text = str(value)[:left]
        left -= len(text) + 1
        words += [*_split(text), _BORDER]
        if left <= 0:
            break
    return " ".join(words[:-1])


def _marked(words: str) -> str:
    return " ".join(_OWNER_ONLY + word for word in words.split(" ") if word)


def _values(params: object) -> Iterator[Any]:
    """Return the values inside of params, the outer ones first; neither their names nor null."""
    waiting: list[object] = [params]
    for _ in range(_PARAM_VALUES_MAX):
        if not waiting:
            return
        value = waiting.pop(0)
        if isinstance(value, dict):
            waiting += list(value.values())[:_PARAM_VALUES_MAX]
        elif isinstance(value, list | tuple):
            waiting += value[:_PARAM_VALUES_MAX]
        elif isinstance(value, bool):
            yield "true" if value else "false"
        elif isinstance(value, int):
            if value.bit_length() <= _NUMBER_BITS_MAX:
                yield value
        elif isinstance(value, str | float):
            yield value
