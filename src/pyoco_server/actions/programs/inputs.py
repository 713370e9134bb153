"""The input files of a job: kept for whoever runs it, and handed to them (sections 5.3 and 19)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import stat
import struct
import tempfile
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import BinaryIO, Protocol

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.job import (
    InlineInputs,
    InputFile,
    Inputs,
    JobAsk,
    ObjectInputs,
    ProgramJob,
    decode_inline,
    files_of,
    fingerprint,
)
from pyoco_server.core.programs.names import FILES_MAX
from pyoco_server.core.zip_archive import Member, ZipArchive
from pyoco_server.errors import Corrupt, InvalidArchive, ObjectNotFound
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import ObjectInfo
from pyoco_server.ports.spool import Spool

__all__ = ["Content", "Inline", "StagedInputs", "inputs_object", "keep_inputs", "open_inputs"]

#: An archive of up to this size is held in memory, a larger one on disk.
_MEMORY_BYTES = 1024 * 1024
#: An object that is replaced while it is read is read again: the same bytes lie under another id.
_READS_MAX = 5
#: What a zip adds to its files, at the most: their names twice, and a little for each.
_ZIP_BYTES = FILES_MAX * (2 * 255 + 256) + 1024
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Signature and facts of an entry, then how long its name is, and what stands behind that.
_LOCAL_HEADER = struct.Struct("<26x2H")


class Content(Protocol):
    """The bytes of the input files of a job, beside its `JobAsk`."""

    def open(self, name: str) -> AsyncIterator[bytes]:
        """The bytes of one of its files, in pieces. May be called again for the same file."""


class Inline(Content):
    """Input files that are in memory already."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    async def open(self, name: str) -> AsyncIterator[bytes]:
        yield self._files[name]


class StagedInputs(Protocol):
    #: Sorted by name.
    files: tuple[InputFile, ...]

    def read(self, name: str) -> AsyncIterator[bytes]:
        """The bytes of one of them, in pieces. Raises KeyError for a name that is none, Corrupt when they are not the
        ones that were submitted."""


# Keeping them.


def inputs_object(run_id: str, mark: str) -> str:
    """GRID-48: where the larger inputs of a job lie, by its fingerprint."""
    return f"{run_id}/in-{mark[:16]}.zip"


async def keep_inputs(backend: Backend, ask: JobAsk, content: Content) -> Inputs:
    """GRID-48 step 2: small ones travel in the message; others become one zip, whose name depends on the content, so
    that another submission of the same id cannot write over them. Memory does not grow with size.

    One that lies there already, as after a submission whose answer was lost, is not sent again. Raises Unavailable;
    Corrupt when the content is not what `ask` says.
    """
    config = programs_of(backend).config
    size = sum(each.size for each in ask.files)
    if size <= config.exec_inline_max:
        return InlineInputs({each.name: base64.b64encode(await _whole(each, content)).decode() for each in ask.files})
    artifacts = programs_of(backend).artifacts
    name = inputs_object(ask.run_id, fingerprint(ask))
    info = await _lies_there(backend, name, config.exec_artifact_ttl_sec / 2)
    if info is None:
        info = await artifacts.put(name, _zipped(ask.files, content), size + _ZIP_BYTES)
    return ObjectInputs(name, info.size_bytes, info.sha256_hex, ask.files)


async def _lies_there(backend: Backend, name: str, age_seconds_max: float) -> ObjectInfo | None:
    """An old one is stored again: it would expire before the job is done."""
    try:
        info = await programs_of(backend).artifacts.info(name)
    except ObjectNotFound:
        return None
    return info if backend.clock() - info.modified < age_seconds_max else None


async def _whole(file: InputFile, content: Content) -> bytes:
    return b"".join([piece async for piece in _checked(file, content.open(file.name))])


async def _checked(file: InputFile, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, and Corrupt when they are not those of this file: at once when they are too many."""
    digest, size = hashlib.sha256(), 0
    async for piece in pieces:
        size += len(piece)
        if size > file.size:
            break
        digest.update(piece)
        yield piece
    if size != file.size or digest.hexdigest() != file.sha256:
        raise Corrupt("an input file is not what was submitted")


class _Sink(io.RawIOBase):
    """What a zip writes to: pieces to be sent on. It cannot seek, so sizes follow their files."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


async def _zipped(files: tuple[InputFile, ...], content: Content) -> AsyncIterator[bytes]:
    """Stored, not packed: most inputs that are large are packed already, and equal content gives equal bytes."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:
        for file in files:
            with archive.open(zipfile.ZipInfo(file.name, _EPOCH), "w", force_zip64=file.size >= 2**31) as entry:
                async for piece in _checked(file, content.open(file.name)):
                    entry.write(piece)
                    yield sink.take()
    yield sink.take()


# Handing them out.


class _InlineInputs:
    def __init__(self, job: ProgramJob, inputs: InlineInputs) -> None:
        self.files = files_of(job)
        self._texts = inputs.files

    async def read(self, name: str) -> AsyncIterator[bytes]:
        yield decode_inline(self._texts[name])


class _ZippedInputs:
    """Files of one archive, of which each lies in one place. `cut` gives the bytes from one offset to another."""

    def __init__(
        self,
        files: tuple[InputFile, ...],
        places: Mapping[str, tuple[int, int]],
        cut: Callable[[int, int], AsyncIterator[bytes]],
    ) -> None:
        self.files = files
        self._by_name = {each.name: each for each in files}
        self._places, self._cut = places, cut

    async def read(self, name: str) -> AsyncIterator[bytes]:
        file = self._by_name[name]
        if name not in self._places:
            raise Corrupt("an input file is missing in its archive")
        async for piece in _checked(file, self._cut(*self._places[name])):
            yield piece


def _places_of(file: BinaryIO, files: tuple[InputFile, ...]) -> dict[str, tuple[int, int]]:
    """Where each file begins and ends. They are stored as they are (`_zipped`). Blocks. Raises Corrupt: GRID-97, an
    entry that is none of the job's files spoils the archive, also when nobody asks for it."""
    places: dict[str, tuple[int, int]] = {}
    sizes = {each.name: each.size for each in files}
    try:
        for member in ZipArchive(file, FILES_MAX).members:
            _check_member(member, sizes.get(member.name), is_known=member.name in places)
            file.seek(member.offset)
            *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            begin = member.offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
            places[member.name] = begin, begin + member.packed_bytes
    except (InvalidArchive, struct.error) as error:
        raise Corrupt("the archive of input files cannot be read") from error
    return places


def _check_member(member: Member, size: int | None, *, is_known: bool) -> None:
    is_file = stat.S_IFMT(member.mode) in {0, stat.S_IFREG}
    if not is_file or is_known or size != member.packed_bytes:
        raise InvalidArchive("it holds something else than the files of the job")


def open_inputs(backend: Backend, job: ProgramJob) -> AbstractAsyncContextManager[StagedInputs]:
    """The input files of a job, for as long as the block lasts. A larger archive is fetched to a file without a name.

    Raises ObjectNotFound on entry when they are no longer kept (INPUT_MISSING), Unavailable, NoRoom, Corrupt.
    """
    return _opened(backend, job)


@contextlib.asynccontextmanager
async def _opened(backend: Backend, job: ProgramJob) -> AsyncIterator[StagedInputs]:
    inputs = job.inputs
    if isinstance(inputs, InlineInputs):
        yield _InlineInputs(job, inputs)
    elif inputs.size <= _MEMORY_BYTES:
        memory = bytearray()

        async def keep(piece: bytes) -> None:
            memory.extend(piece)

        async def cut(begin: int, end: int) -> AsyncIterator[bytes]:
            yield bytes(memory[begin:end])

        await _fetch(backend, inputs, keep, memory.clear)
        yield _ZippedInputs(inputs.files, _places_of(io.BytesIO(memory), inputs.files), cut)
    else:
        async with Spool(Path(tempfile.gettempdir())) as spool:
            await _fetch(backend, inputs, spool.write, None)
            await spool.finish()
            places = await spool.examine(lambda file: _places_of(file, inputs.files))
            yield _ZippedInputs(inputs.files, places, spool.chunks)


async def _fetch(
    backend: Backend, inputs: ObjectInputs, write: Callable[[bytes], Awaitable[None]], again: Callable[[], None] | None
) -> None:
    """The whole object, checked. `again`: begin anew, when it is replaced by its like in the middle."""
    artifacts = programs_of(backend).artifacts
    for tries_left in reversed(range(_READS_MAX)):
        info = await artifacts.info(inputs.object)
        if (info.size_bytes, info.sha256_hex) != (inputs.size, inputs.sha256):
            raise Corrupt("the stored input files are not those of the job")
        written = 0
        try:
            async with aclosing(artifacts.read(info)) as chunks:
                async for chunk in chunks:
                    await write(chunk)
                    written += len(chunk)
        except ObjectNotFound:
            if not tries_left or (written and again is None):
                raise
            if again is not None:
                again()
            continue
        return
