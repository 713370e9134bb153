"""Files of strangers: each is pages, or refused with a reason, and none of them takes the process along."""

from __future__ import annotations

import contextlib
import io
import struct
import time
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pyoco_server.core.ocr.page import Box, Raster
from pyoco_server.ports.ocr.pages import FORMATS, PAGE_PIXELS_MAX, PillowImages
from pyoco_server.ports.ocr.port import ImageRefused

IMAGES = PillowImages()


def written(
    kind: str, *, size: tuple[int, int] = (40, 30), mode: str = "L", pages: int = 1, **options: object
) -> bytes:
    """Black, with a white corner at the upper left."""
    page = Image.new(mode, size, 0)
    page.paste(Image.new(mode, (10, 10), "white" if mode != "L" else 255), (0, 0))
    file = io.BytesIO()
    more = {"save_all": True, "append_images": [page] * (pages - 1)} if pages > 1 else {}
    page.save(file, kind, **more, **options)
    return file.getvalue()


def read(data: bytes, tmp_path: Path, index: int = 0) -> tuple[int, Raster]:
    path = tmp_path / "file"
    path.write_bytes(data)
    with IMAGES.open(path) as book:
        return book.pages, book.page(index)


def refused(data: bytes, tmp_path: Path) -> ImageRefused:
    with pytest.raises(ImageRefused) as error:
        read(data, tmp_path)
    assert error.value.what.isprintable()
    return error.value


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_becomes_gray_pixels(kind: str, tmp_path: Path) -> None:
    pages, raster = read(written(kind, mode="RGB"), tmp_path)
    assert pages == 1
    assert (raster.width, raster.height, len(raster.gray)) == (40, 30, 1200)
    assert raster.gray[0] > 200
    assert raster.gray[-1] < 50


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_kind_of_pixel_becomes_gray(mode: str, tmp_path: Path) -> None:
    page = Image.new(mode, (40, 30)) if mode == "I;16" else Image.new("L", (40, 30)).convert(mode)
    if mode == "I;16":
        page.putpixel((0, 0), 40_000)
    file = io.BytesIO()
    page.save(file, "TIFF" if mode == "LA" else "PNG")
    _, raster = read(file.getvalue(), tmp_path)
    assert len(raster.gray) == 1200
    assert raster.gray[-1] < 50
    assert mode != "I;16" or raster.gray[0] == 255


def test_what_is_transparent_is_paper(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGBA", (40, 30), (0, 0, 0, 0)).save(file, "PNG")
    assert set(read(file.getvalue(), tmp_path)[1].gray) == {255}


def test_pages_of_a_tiff_are_pages_and_pictures_that_move_are_one(tmp_path: Path) -> None:
    tiff = written("TIFF", pages=3)
    assert [read(tiff, tmp_path, index)[0] for index in range(3)] == [3, 3, 3]
    for kind in ("GIF", "WEBP", "PNG"):
        assert read(written(kind, mode="RGB", pages=3), tmp_path)[0] == 1


def test_a_picture_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned to the left: up is at the right
    _, raster = read(written("JPEG", exif=exif), tmp_path)
    assert (raster.width, raster.height) == (30, 40)
    assert raster.gray[raster.width - 1] > 200


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08" + b"\xff" * 60_000]
)
def test_nonsense_about_the_camera_is_passed_over(exif: bytes, tmp_path: Path) -> None:
    began = time.monotonic()
    _, raster = read(written("JPEG", exif=exif), tmp_path)
    assert (raster.width, raster.height) == (40, 30)
    assert time.monotonic() - began < 60


def png_claiming(width: int, height: int) -> bytes:
    head = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    "size", [(10_000, 10_000), (10_000, 5_001), (20_001, 1), (1, 20_001), (2**31 - 1, 2**31 - 1)], ids=str
)
def test_a_page_that_claims_to_be_too_large_is_refused_before_it_is_decoded(
    size: tuple[int, int], tmp_path: Path
) -> None:
    error = refused(png_claiming(*size), tmp_path)
    assert error.code in {"IMAGE_TOO_LARGE", "IMAGE_CORRUPT"}
    assert error.code == "IMAGE_TOO_LARGE" or max(size) > 20_001
    assert f"{PAGE_PIXELS_MAX:,} pixels" in error.what or error.code == "IMAGE_CORRUPT"


def test_a_later_page_that_is_too_large_is_seen_before_any_is_decoded(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("1", (40, 30)).save(
        file, "TIFF", save_all=True, append_images=[Image.new("1", (20_001, 2))], compression="group4"
    )
    path = tmp_path / "file"
    path.write_bytes(file.getvalue())
    with pytest.raises(ImageRefused), IMAGES.open(path):
        pass


def test_a_large_page_within_the_limit_is_shrunk(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("1", (10_000, 4_999), 1).save(file, "TIFF", compression="group4")
    _, raster = read(file.getvalue(), tmp_path)
    assert raster.width * raster.height <= 16_100_000
    assert abs(raster.width / raster.height - 2) < 0.01


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_short_or_damaged_is_refused_or_read(kind: str, tmp_path: Path) -> None:
    whole = written(kind, size=(200, 200), mode="RGB")
    for part in (8, len(whole) // 2):
        assert refused(whole[:part], tmp_path).code in {"IMAGE_CORRUPT", "IMAGE_UNKNOWN"}


def test_a_damaged_png_is_told_by_its_checksum(tmp_path: Path) -> None:
    whole = bytearray(written("PNG", size=(200, 200)))
    whole[whole.index(b"IEND") - 5] ^= 0xFF  # the last byte of the pixels' checksum: they could be decoded
    assert refused(bytes(whole), tmp_path).code == "IMAGE_CORRUPT"


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Main-Class: Evil\n")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "IMAGE_CORRUPT"),
        (b"%PDF-1.7\n%\xe2\xe3\n", "PDF_NOT_READ"),
        (b"<!DOCTYPE html><html></html>", "IMAGE_UNKNOWN"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "IMAGE_UNKNOWN"),
        (b"GIF89a", "IMAGE_UNKNOWN"),
        (b"\0" * 1000, "IMAGE_UNKNOWN"),
        (zipped(), "IMAGE_UNKNOWN"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "IMAGE_UNKNOWN"),
        (written("GIF") + zipped(), "IMAGE_POLYGLOT"),
        (written("PNG") + zipped(), "IMAGE_POLYGLOT"),
        (written("JPEG") + zipped(), "IMAGE_POLYGLOT"),
        (written("JPEG", comment=b"%PDF-1.4 1 0 obj"), "IMAGE_POLYGLOT"),
        (written("JPEG", comment=b"<SCRIPT>alert(1)</SCRIPT>"), "IMAGE_POLYGLOT"),
    ],
    ids=[
        *("empty", "PDF", "HTML", "SVG", "a head alone", "zeros", "ZIP", "PostScript"),
        *("GIF and JAR", "PNG and ZIP", "JPEG and ZIP", "JPEG and PDF", "JPEG and HTML"),
    ],
)
def test_what_is_no_plain_image_is_refused_for_what_it_is(data: bytes, code: str, tmp_path: Path) -> None:
    error = refused(data, tmp_path)
    assert error.code == code
    assert code != "PDF_NOT_READ" or "pdftoppm" in error.what


def test_a_text_that_is_a_bomb_is_refused(tmp_path: Path) -> None:
    bomb = b"Comment\0\0" + zlib.compress(b"\0" * 70_000_000)
    chunk = struct.pack(">I", len(bomb)) + b"zTXt" + bomb + struct.pack(">I", zlib.crc32(b"zTXt" + bomb))
    whole = written("PNG")
    at = whole.index(b"IDAT") - 4
    assert refused(whole[:at] + chunk + whole[at:], tmp_path).code == "IMAGE_CORRUPT"


def test_a_tiff_whose_pages_lead_back_ends(tmp_path: Path) -> None:
    data = bytearray(written("TIFF"))
    (start,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, start)
    struct.pack_into("<I", data, start + 2 + 12 * entries, start)
    assert read(bytes(data), tmp_path)[0] == 1


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMATS), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=8))
def test_whatever_bytes_are_wrong_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, kind: str, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(written(kind, mode="RGB"))
    for at, value in changes:
        data[at % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(data)
    with contextlib.suppress(ImageRefused), IMAGES.open(path) as book:
        book.page(0)


def test_a_part_of_a_page_holds_its_boxes_and_nothing_else() -> None:
    page = Raster(100, 100, bytes(100 * 100))
    part, left, top = IMAGES.part(page, [Box(40, 20, 60, 32), Box(40, 60, 60, 72)], 2.0)
    assert (left, top) == (24, 4)
    assert (part.width, part.height) == (2 * 52, 2 * 84)
    middle = part.gray[part.width // 2 :: part.width]
    assert middle[2 * (26 - top)] == 0
    assert middle[2 * (46 - top)] == 255
