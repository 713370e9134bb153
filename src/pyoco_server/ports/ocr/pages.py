"""Decode untrusted image files into pages with Pillow. A file's claims are checked before anything is decoded."""

from __future__ import annotations

import contextlib
import math
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from PIL import Image, ImageChops, ImageFilter, ImageOps, UnidentifiedImageError

from pyoco_server.core.ocr.layout import DARK_MAX, NOISE_MAX, PIXELS_MAX
from pyoco_server.core.ocr.page import Box, Ink, PageFacts, Raster, bounds
from pyoco_server.ports.ocr.port import ImageRefused

__all__ = ["FORMATS", "PAGE_PIXELS_MAX", "PAGE_SIDE_MAX", "PillowImages"]

FORMATS: Final = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")
#: Limit of one page, checked before decoding: A4 at 600 dpi has 35 million pixels.
PAGE_PIXELS_MAX: Final = 50_000_000
PAGE_SIDE_MAX: Final = 20_000
#: A file of a megabyte can claim a million pages, and Pillow reads them one by one.
_PAGES_MAX: Final = 1_000
_ORIENTATION: Final = 0x0112
_PAGED: Final = frozenset({"TIFF"})
_HEAD_BYTES: Final = 4_096
_ZIP_TAIL_BYTES: Final = 65_557
_ZIP_END = struct.Struct("<4s4H2LH")
_MARKUP: Final = (b"<!doctype html", b"<html", b"<script", b"<svg", b"<?php")

_KINDS: Final = ", ".join(FORMATS)
_NOT_AN_IMAGE: Final = f"is not an image that can be read; there may be {_KINDS}"
_PDF: Final = "is a PDF: make images of its pages first, for example with pdftoppm -r 300 -png, or one multi-page TIFF"
_TWO_KINDS: Final = "is an image and a file of another kind at once; save it anew as a plain image"
_BROKEN: Final = "is damaged or cut short"
_TOO_LARGE: Final = f"has a page of more than {PAGE_PIXELS_MAX:,} pixels, or of more than {PAGE_SIDE_MAX:,} on a side"


class PillowImages:
    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[PillowBook]:
        with path.open("rb") as file:
            _refuse_other_kinds(file)
            with _errors():
                image = Image.open(file, formats=FORMATS)
                if image.format == "PNG":
                    image.verify()  # checks its checksums; the image cannot be used afterwards
                    file.seek(0)
                    image = Image.open(file, formats=FORMATS)
            with image:
                yield PillowBook(image)

    def look(self, raster: Raster) -> PageFacts:
        image = _image(raster)
        cell = max(2, min(raster.width, raster.height) // 500)
        background = _background(image)
        noise = _noise(image, background)
        small = (_denoised(image) if noise > NOISE_MAX else image).reduce(cell)
        apart = _apart(small.histogram(), background)
        # Low on purpose: blurred or faint content next to black letters is content, too.
        threshold = max(20, round(apart * 0.12))
        table = [255 if abs(level - background) >= threshold else 0 for level in range(256)]
        return PageFacts(
            background=background,
            contrast=apart if apart >= threshold else 0,
            noise=noise,
            shade=_shade(ImageOps.invert(small) if background < DARK_MAX else small),
            ink=_ink(small.point(table), cell),
        )

    def prepare(self, raster: Raster, steps: Sequence[str], scale: float) -> Raster:
        image = _image(raster)
        for step in steps:
            image = _enlarged(image, scale) if step == "enlarge" else _STEPS[step](image)
        return _raster(image)

    def part(self, raster: Raster, boxes: Sequence[Box], scale: float) -> tuple[Raster, int, int]:
        image = _image(raster)
        # A margin: letters at the very edge are recognized badly.
        around = bounds(boxes)
        margin = 16
        left, top = max(0, around.left - margin), max(0, around.top - margin)
        right, bottom = min(raster.width, around.right + margin), min(raster.height, around.bottom + margin)
        part = Image.new("L", (right - left, bottom - top), 255)
        for box in boxes:
            reach = min(margin, box.height // 6)
            corner = (max(0, box.left - reach), max(0, box.top - reach))
            end = (min(raster.width, box.right + reach), min(raster.height, box.bottom + reach))
            part.paste(image.crop((*corner, *end)), (corner[0] - left, corner[1] - top))
        return _raster(part if scale == 1 else _enlarged(part, scale)), left, top


class PillowBook:
    def __init__(self, image: Image.Image) -> None:
        """Raises ImageRefused if any page claims to be too large, before one is decoded."""
        self._image = image
        _check_size(image)
        self.pages = _count(image) if image.format in _PAGED else 1  # of an animation, only the first frame

    def page(self, index: int) -> Raster:
        with _errors():
            self._image.seek(index)
            _check_size(self._image)
            if self._image.format == "JPEG" and _is_huge(self._image):
                self._image.draft("L", (self._image.width // 2, self._image.height // 2))
            self._image.load()
            return _raster(_upright(self._image))


def _count(image: Image.Image) -> int:
    """Count the pages one by one, up to a limit, and check the size of each before any is decoded."""
    pages = 0
    with _errors():
        while True:
            try:
                image.seek(pages)
            except EOFError:
                image.seek(0)
                return pages
            _check_size(image)
            pages += 1
            if pages > _PAGES_MAX:
                raise ImageRefused("IMAGE_TOO_LARGE", f"has more than {_PAGES_MAX:,} pages")


def _check_size(image: Image.Image) -> None:
    if max(image.size) > PAGE_SIDE_MAX or image.width * image.height > PAGE_PIXELS_MAX:
        raise ImageRefused("IMAGE_TOO_LARGE", _TOO_LARGE)
    if min(image.size) < 1:
        raise ImageRefused("IMAGE_CORRUPT", _BROKEN)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """The only place that translates Pillow's exceptions into ours.

    Pillow raises whatever a file makes it stumble over: struct.error, KeyError, SyntaxError, zlib.error and more; half
    of it also causes warnings.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ImageRefused:
            raise
        except UnidentifiedImageError as error:
            raise ImageRefused("IMAGE_UNKNOWN", _NOT_AN_IMAGE) from error
        except (Image.DecompressionBombError, MemoryError) as error:
            raise ImageRefused("IMAGE_TOO_LARGE", _TOO_LARGE) from error
        except Exception as error:
            raise ImageRefused("IMAGE_CORRUPT", _BROKEN) from error


def _refuse_other_kinds(file: IO[bytes]) -> None:
    """Refuse an image that is also a PDF, an archive or markup: such a file was made to be mistaken for another kind.

    Leaves the file position at the start.
    """
    head = file.read(_HEAD_BYTES)
    size = file.seek(0, 2)
    file.seek(max(0, size - _ZIP_TAIL_BYTES))
    tail = file.read(_ZIP_TAIL_BYTES)
    file.seek(0)
    if not size:
        raise ImageRefused("IMAGE_CORRUPT", "is empty")
    if head.lstrip()[:5] == b"%PDF-":
        raise ImageRefused("PDF_NOT_READ", _PDF)
    is_other = b"%PDF-" in head[:1024] or _ends_as_zip(tail) or any(marker in head.lower() for marker in _MARKUP)
    if is_other:
        what = _TWO_KINDS if _is_image(head) else _NOT_AN_IMAGE
        raise ImageRefused("IMAGE_POLYGLOT" if _is_image(head) else "IMAGE_UNKNOWN", what)


def _is_image(head: bytes) -> bool:
    starts = (b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"GIF8", b"BM", b"RIFF")
    return head.startswith(starts)


def _ends_as_zip(tail: bytes) -> bool:
    """Return whether the tail contains an end-of-archive record, with a directory at the offset it gives."""
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _ZIP_END.size:
        return False
    directory_bytes = _ZIP_END.unpack_from(tail, at)[5]
    start = at - directory_bytes
    return directory_bytes == 0 or start < 0 or tail[start : start + 4] == b"PK\1\2"


def _is_huge(image: Image.Image) -> bool:
    return image.width * image.height > 2 * PIXELS_MAX


def _upright(image: Image.Image) -> Image.Image:
    """Return the image in gray: transparency on white, rotated according to its EXIF data, and no larger than is
    useful."""
    turn = _turn(image)
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        white.alpha_composite(clear)
        image = white
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        image = _leveled(image)
    image = image.convert("L")
    if image.width * image.height > PIXELS_MAX:
        image = _enlarged(image, math.sqrt(PIXELS_MAX / (image.width * image.height)))
    return image.transpose(turn) if turn is not None else image


def _leveled(image: Image.Image) -> Image.Image:
    """Scale sixteen bits and more down to eight: `convert` would clip them."""
    wide = image.convert("F")
    low, high = wide.getextrema()
    assert isinstance(low, float)
    assert isinstance(high, float)
    scale = 255 / (high - low) if high > low else 0
    return wide.point(lambda level: level * scale + (-low * scale if scale else 255)).convert("L")


_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Return the rotation in the EXIF data. Malformed EXIF data does not spoil the picture."""
    try:
        orientation: Any = image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001  (as in `_errors`; here nothing is lost)
        return None
    return _TURNS.get(orientation) if isinstance(orientation, int) else None


def _image(raster: Raster) -> Image.Image:
    return Image.frombytes("L", (raster.width, raster.height), raster.gray)


def _raster(image: Image.Image) -> Raster:
    return Raster(image.width, image.height, image.tobytes())


def _enlarged(image: Image.Image, scale: float) -> Image.Image:
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _apart(counts: Sequence[int], background: int) -> int:
    """Return the distance from the background that two pixels in a thousand reach or exceed."""
    left = max(1, sum(counts) // 500)
    for distance in range(255, 0, -1):
        for level in {background - distance, background + distance}:
            left -= counts[level] if 0 <= level <= 255 else 0
        if left <= 0:
            return distance
    return 0


def _ink(marked: Image.Image, cell: int) -> Ink:
    """Pack one bit per square. Pillow starts every row at a byte boundary."""
    packed = marked.convert("1", dither=Image.Dither.NONE).tobytes()
    across, stride = marked.width, -(-marked.width // 8)
    rows = (
        int.from_bytes(packed[start : start + stride]) >> (8 * stride - across)
        for start in range(0, stride * marked.height, stride)
    )
    return Ink(across, cell, tuple(rows))


def _background(image: Image.Image) -> int:
    """Return the most frequent brightness of the page, with a small tolerance."""
    counts = image.histogram()
    return max(range(256), key=lambda level: (sum(counts[max(0, level - 4) : level + 5]), counts[level]))


_SAMPLE: Final = 400
_NEAR: Final = 8


def _noise(image: Image.Image, background: int) -> float:
    """Return the share of blank paper that is specks.

    Measured in nine samples, so large pages take no longer than small ones.
    """
    bare = specks = 0
    for down, across in ((down, across) for down in range(3) for across in range(3)):
        left, top = (
            max(0, (side - _SAMPLE) * part // 2) for side, part in zip(image.size, (across, down), strict=True)
        )
        sample = image.crop((left, top, min(image.width, left + _SAMPLE), min(image.height, top + _SAMPLE)))
        calm = _denoised(sample)
        lettered = calm.point([255 if abs(level - background) > 40 else 0 for level in range(256)])
        # Exclude the surroundings of letters: the filter removes thin letters, too.
        near = lettered.reduce(_NEAR).point([0, *[255] * 255]).filter(ImageFilter.MaxFilter(3))
        paper = ImageChops.invert(near.resize(sample.size, Image.Resampling.NEAREST))
        changed = ImageChops.difference(sample, calm).point([255 if level > 60 else 0 for level in range(256)])
        bare += paper.histogram()[255]
        specks += ImageChops.multiply(changed, paper).histogram()[255]
    return specks / max(1, bare)


def _paper(image: Image.Image) -> Image.Image:
    """Estimate the blank page: the brightest pixel around each point, at a sixteenth of the size."""
    small = image.resize((max(4, image.width // 16), max(4, image.height // 16)), Image.Resampling.BOX)
    return small.filter(ImageFilter.MaxFilter(5)).filter(ImageFilter.BoxBlur(3))


def _shade(image: Image.Image) -> int:
    """Return how much the brightness of the paper varies over the page."""
    counts, seen, ends = _paper(image).histogram(), 0, []
    total = sum(counts)
    for level, count in enumerate(counts):
        before, seen = seen, seen + count
        ends.extend([level] * sum(before < total * share <= seen for share in (0.05, 0.95)))
    return ends[-1] - ends[0] if ends else 0


def _flattened(image: Image.Image) -> Image.Image:
    paper = _paper(image).resize(image.size, Image.Resampling.BILINEAR)
    return ImageChops.invert(ImageChops.subtract(paper, image))


def _contrasted(image: Image.Image) -> Image.Image:
    return ImageOps.autocontrast(image, cutoff=(0.1, 1))


def _denoised(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.MedianFilter(3))


_STEPS: Final = {
    "invert": ImageOps.invert,
    "flatten": _flattened,
    "contrast": _contrasted,
    "denoise": _denoised,
}
