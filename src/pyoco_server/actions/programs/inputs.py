"""The input files of a job: storing them at submission and reading them for execution (sections 5.3 and 19)."""

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
from pyoco_server.core.zip_archive import ArchiveMember, ZipArchive
from pyoco_server.errors import Corrupt, InvalidArchive, ObjectNotFound
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import ObjectInfo
from pyoco_server.ports.spool import Spool

__all__ = ["Content", "Inline", "StagedInputs", "inputs_object", "keep_inputs", "open_inputs"]

#: An archive of up to this size is kept in memory, a larger one on disk.
_MEMORY_BYTES = 1024 * 1024
#: Limit of reads of an object that is replaced during the read: the same bytes are then stored under a new id.
_READS_MAX = 5
#: The most that a zip adds to its files: their names twice, and a small overhead for each.
_ZIP_BYTES = FILES_MAX * (2 * 255 + 256) + 1024
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Length of an entry's name and of its extra field; the rest of the local header is skipped.
_LOCAL_HEADER = struct.Struct("<26x2H")


class Content(Protocol):
    """The bytes of a job's input files, which travel beside its `JobAsk`."""

    def open(self, name: str) -> AsyncIterator[bytes]:
        """Return the bytes of one file, in pieces. May be called again for the same file."""


class Inline(Content):
    """Input files that are already in memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    async def open(self, name: str) -> AsyncIterator[bytes]:
        yield self._files[name]


class StagedInputs(Protocol):
    #: Sorted by name.
    files: tuple[InputFile, ...]

    def read(self, name: str) -> AsyncIterator[bytes]:
        """Return the bytes of one file, in pieces.

        Raises KeyError for an unknown name, Corrupt if the bytes are not the submitted ones.
        """


# Storing.


def inputs_object(run_id: str, mark: str) -> str:
    """Return the object name of the larger inputs of a job (GRID-48), which contains the fingerprint."""
    return f"{run_id}/in-{mark[:16]}.zip"


async def keep_inputs(backend: Backend, ask: JobAsk, content: Content) -> Inputs:
    """Store the inputs of a job (GRID-48 step 2): small ones in the message, others in one zip.

    The name of the zip depends on the content, so another submission of the same id cannot overwrite it. Memory does
    not grow with size. An object that already exists, as after a submission whose response was lost, is not sent again.

    Raises Unavailable; Corrupt if the content does not match `ask`.
    """
    config = programs_of(backend).config
    size = sum(each.size for each in ask.files)
    if size <= config.exec_inline_max:
        return InlineInputs(
            {each.name: base64.b64encode(await _read_all(each, content)).decode() for each in ask.files}
        )
    artifacts = programs_of(backend).artifacts
    name = inputs_object(ask.run_id, fingerprint(ask))
    info = await _find_fresh(backend, name, config.exec_artifact_ttl_sec / 2)
    if info is None:
        info = await artifacts.put(name, _zipped(ask.files, content), size + _ZIP_BYTES)
    return ObjectInputs(name, info.size_bytes, info.sha256_hex, ask.files)


async def _find_fresh(backend: Backend, name: str, age_seconds_max: float) -> ObjectInfo | None:
    """Return the stored object. None: missing, or so old that it would expire before the job is done."""
    try:
        info = await programs_of(backend).artifacts.info(name)
    except ObjectNotFound:
        return None
    return info if backend.clock() - info.modified < age_seconds_max else None


async def _read_all(file: InputFile, content: Content) -> bytes:
    return b"".join([piece async for piece in _checked(file, content.open(file.name))])


async def _checked(file: InputFile, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces. Raises Corrupt if they do not match the file: immediately when there are too many bytes."""
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
    """The output of a zip: pieces to be sent on. It cannot seek, so sizes follow their files."""

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
    """Store without compression: most large inputs are compressed already, and equal content must give equal bytes."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:
        for file in files:
            with archive.open(zipfile.ZipInfo(file.name, _EPOCH), "w", force_zip64=file.size >= 2**31) as entry:
                async for piece in _checked(file, content.open(file.name)):
                    entry.write(piece)
                    yield sink.take()
    yield sink.take()


# Reading.


class _InlineInputs:
    def __init__(self, job: ProgramJob, inputs: InlineInputs) -> None:
        self.files = files_of(job)
        self._texts = inputs.files

    async def read(self, name: str) -> AsyncIterator[bytes]:
        yield decode_inline(self._texts[name])


class _ZippedInputs:
    """Files of one archive, each in one range of it. `cut` returns the bytes from one offset to another."""

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
    """Return where each file begins and ends; they are stored uncompressed (`_zipped`). Blocks.

    Raises Corrupt. An entry that is not one of the job's files invalidates the archive, even if it is never read
    (GRID-97).
    """
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


def _check_member(member: ArchiveMember, size: int | None, *, is_known: bool) -> None:
    is_file = stat.S_IFMT(member.mode) in {0, stat.S_IFREG}
    if not is_file or is_known or size != member.packed_bytes:
        raise InvalidArchive("it holds something else than the files of the job")


def open_inputs(backend: Backend, job: ProgramJob) -> AbstractAsyncContextManager[StagedInputs]:
    """Return the input files of a job, usable within the block. A larger archive is fetched to an unnamed file.

    Raises ObjectNotFound on entry if they are no longer stored (INPUT_MISSING), Unavailable, NoRoom, Corrupt.
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
    """Read and check the complete object. `again` restarts when it is replaced by an equal one during the read."""
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
