"""`ocr`: images of the tenant, for the text on them (contract 14.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pyoco_server.core.packs.spec import Here, Member, Members, PackSpec, choice, text, whole
from pyoco_server.core.priced.input_key import KEY_LENGTH_MAX, input_prefix, is_own_key
from pyoco_server.errors import Problem

__all__ = ["IMAGES_MAX", "LANGUAGE", "OCR", "PAGES_MAX", "PROFILES", "languages_of"]

IMAGES_MAX: Final = 10
#: The default, and the maximum of any run.
PAGES_MAX: Final = 50
#: The first is the default.
PROFILES: Final = ("P1", "P2A", "P2B", "P3")
LANGUAGE: Final = "kor+eng"
_LANGUAGE = re.compile(r"[a-z]{3}(\+[a-z]{3}){0,4}", re.ASCII)
#: More than S3 allows for the name of a bucket.
_BUCKET_LENGTH_MAX: Final = 255

_IMAGE: Final = Members(
    {
        "kind": Member(choice(("s3",)), is_required=True),
        "bucket": Member(text(1, _BUCKET_LENGTH_MAX), is_required=True),
        "key": Member(text(1, KEY_LENGTH_MAX), is_required=True),
    }
)


def _images(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
    if not isinstance(value, list):
        return (Problem(loc, "must be a list", "type"),)
    if not 1 <= len(value) <= IMAGES_MAX:
        return (Problem(loc, f"must have 1 to {IMAGES_MAX} items, and has {len(value)}", "length"),)
    return tuple(problem for index, item in enumerate(value) for problem in _IMAGE(item, (*loc, index)))


def _language(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
    if isinstance(value, str) and _LANGUAGE.fullmatch(value):
        return ()
    return (Problem(loc, "must be 1 to 5 codes of three letters, such as kor+eng", "value"),)


def _own_files_alone(inputs: Mapping[str, Any], here: Here) -> tuple[Problem, ...]:
    """PRICED-147: restrict the keys to the tenant's prefix. Otherwise the worker would read the files of other tenants
    for any caller who knows their names."""
    problems: list[Problem] = []
    for index, image in enumerate(inputs["images"]):
        if image["bucket"] != here.input_bucket:
            problems.append(Problem(("images", index, "bucket"), f"must be {here.input_bucket}", "value"))
        if not is_own_key(image["key"], here.tenant_id):
            rule = f"must begin with {input_prefix(here.tenant_id)}, without empty steps, dots for steps, backslashes"
            problems.append(Problem(("images", index, "key"), f"{rule} or control characters", "value"))
    return tuple(problems)


def _keys(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the distinct keys: an image may be listed twice."""
    return tuple(dict.fromkeys(image["key"] for image in inputs["images"]))


def languages_of(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the distinct languages, in the given order."""
    return tuple(dict.fromkeys(inputs.get("language", LANGUAGE).split("+")))


OCR: Final = PackSpec(
    name="ocr",
    has_own_process=True,
    inputs=Members(
        {
            "images": Member(_images, is_required=True),
            "ocr_profile": Member(choice(PROFILES)),
            "language": Member(_language),
            "max_pages": Member(whole(1, PAGES_MAX)),
        }
    ),
    beyond=_own_files_alone,
    files=_keys,
    needs=languages_of,
    needs_member="language",
    # The number of pages is known only once the images are read.
    price=lambda _, prices: prices.ocr.of(1),
)
