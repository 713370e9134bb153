"""Loads the OCR profiles: the bundled file, or the operator's."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pyoco_server.core.ocr.profiles import BadProfiles, OcrProfile, parse_profiles
from pyoco_server.errors import InvalidFlow, SettingError
from pyoco_server.executors.flow.yaml_document import read_document

__all__ = ["read_profiles"]

#: A thousand times what is needed.
_BYTES_MAX = 1024 * 1024


def read_profiles(file: str) -> dict[str, OcrProfile]:
    """Return the profiles by name. An empty `file` means the bundled one. Raises SettingError, which describes the
    problem."""
    if not file:
        ours = resources.files("pyoco_server.core.ocr").joinpath("profiles.yaml")
        return parse_profiles(read_document(ours.read_text(encoding="utf-8")))
    try:
        return parse_profiles(read_document(_text(Path(file))))
    except OSError as error:
        raise SettingError(f"PYOCO_OCR_PROFILES_FILE: {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"PYOCO_OCR_PROFILES_FILE: {file} is not UTF-8") from error
    except InvalidFlow as error:
        problems = "; ".join(problem.msg for problem in error.problems) or str(error)
        raise SettingError(f"PYOCO_OCR_PROFILES_FILE: {file}: {problems}") from error
    except BadProfiles as error:
        raise SettingError(f"PYOCO_OCR_PROFILES_FILE: {file}: {error}") from error


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX:
        raise BadProfiles(f"has more than {_BYTES_MAX:,} bytes")
    return data.decode("utf-8")
