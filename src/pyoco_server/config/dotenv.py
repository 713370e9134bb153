"""Parser of dotenv files: one `NAME=value` per line (FLOW-512)."""

from __future__ import annotations

import re
from pathlib import Path

from pyoco_server.errors import SettingError

__all__ = ["read_dotenv"]

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a dotenv file; empty if the file does not exist.

    Supports comments, `export` and quotes, but no interpolation. Raises SettingError with file and line, but without
    the line's text, which may contain a secret.
    """
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise SettingError(f"{path}, line {number}: not UTF-8; save the file as UTF-8") from error
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
        raise SettingError(f"PYOCO_ENV_FILE={str(path)!r} cannot be read: {error}; example: .env") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        variable = _variable(line)
        if variable is None:
            raise SettingError(f"{path}, line {number}: not a variable; example: PYOCO_DEFAULT_TAG=default")
        found.update([variable])
    return found


def _variable(line: str) -> tuple[str, str] | None:
    """Parse name and value of one line: `'…'` is literal, `"…"` has escapes, any other value ends at a comment."""
    left, equals, right = line.partition("=")
    name = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*", left)
    if name is None or not equals or "\0" in right:
        return None
    right = right.strip()
    if right[:1] not in {"'", '"'}:
        return name[1], re.split(r"(?:^|\s)#", right, maxsplit=1)[0].rstrip()
    quoted = re.fullmatch(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")\s*(?:(?<=\s)#.*)?""", right)
    if quoted is None:
        return None
    if quoted[1] is not None:
        return name[1], quoted[1]
    return name[1], re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), quoted[2])
