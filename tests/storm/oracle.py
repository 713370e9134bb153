"""The judge: what must be true after a storm, once everything was healed and had its time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Awaitable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pyoco_server.actions.priced.audit import audit
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.errors import PyocoError
from pyoco_server.ports.nats.link import Rejected
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from storm.book import ENDS, Accepted, Book, Kind
from storm.faults.duplicates import QUEUES
from storm.faults.nodes import caught_up
from storm.frames import DOOR
from storm.history import Facts, History, check
from storm.load import Load
from storm.readers import Readers
from storm.recorder import Recorder
from storm.site import StormProcess, StormSite
from support.backends import dead_letters
from support.chaos import Eyes
from support.grid.story import assert_exact

__all__ = ["Judgement", "bad_exits", "children_left", "judge"]

#: After the last heal; the longest timer of a site is 30 s, and a machine may be slow.
BOUND_SECONDS = 300.0
#: The keeper ends runs whose submission was not answered when they are this old.
_ABANDONED_SECONDS = 120.0
#: A pack is shown among the other runs so long after its end at most.
_PROJECTED_SECONDS = 120.0
_END_SECONDS = 60.0
_TOLD_MAX = 12
#: For which a pack may fail here: its worker was lost or its clock or the keeper's was wrong; NATS was away for as long
#: as a worker insists on storing a result; it was away when the job was put, and a repeat had been told yes meanwhile.
_EXPLAINED = frozenset({Reason.WORKER_TIMEOUT, Reason.PACK_UNAVAILABLE, Reason.QUEUE_ENQUEUE_FAILED})
#: An orderly end, and one for a reason that was told, as without NATS.
_FAIR_CODES = frozenset({0, 1})


@dataclass
class Judgement:
    #: How long after the storm everything had ended.
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)
    #: By kind: how runs ended.
    ends: dict[Kind, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in Kind})
    letters: int = 0
    writes: int = 0
    keys: int = 0

    def add(self, what: str, found: Iterable[str]) -> None:
        told = list(found)
        self.violations += [f"{what}: {each}" for each in told[:_TOLD_MAX]]
        if len(told) > _TOLD_MAX:
            self.violations.append(f"{what}: and {len(told) - _TOLD_MAX} more")


async def judge(site: StormSite, eyes: Eyes, load: Load, readers: Readers, recorder: Recorder) -> Judgement:
    """Waits until everything has ended, then looks at all there is. The site still runs; it was healed."""
    found, book = Judgement(), load.book
    began = time.monotonic()
    await _until_quiet(site, eyes, book)
    found.seconds = time.monotonic() - began
    for what, look in (
        ("nodes", _nodes(site)),
        ("stuck", _stuck(eyes, book)),
        ("shown", _shown(site, eyes, book, readers)),
        ("projection", _projection(eyes, book)),
        ("money", _money(site, load)),
        ("programs", _programs(site, eyes, book)),
        ("letters", _letters(eyes, found)),
        ("queue", _queues(eyes)),
        ("history", _history(site, recorder, found)),
    ):
        found.add(what, await _looked(look))
    found.add("answers", book.wrong)
    found.add("ends", _ends(site, book, found))
    return found


async def _looked(look: Awaitable[list[str]]) -> list[str]:
    """A judge who could not look has found something, too."""
    try:
        return await look
    except (AssertionError, PyocoError, Rejected, TimeoutError) as error:
        return [f"{type(error).__name__}: {error}"]


async def _until_quiet(site: StormSite, eyes: Eyes, book: Book) -> None:
    """Until all that is stored has ended, or the bound has passed."""
    deadline = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(PyocoError, Rejected):
            if not book.unfinished() and not await _open_rows(site) and not await _queues(eyes):
                return
        await asyncio.sleep(0.5)


async def _open_rows(site: StormSite) -> list[PricedRun]:
    return [row for row in await _rows(site) if not row.has_ended]


async def _rows(site: StormSite) -> list[PricedRun]:
    async with site.money() as priced:
        return await priced.ledger.read(lambda tx: tx.runs.changed_since(0, "", 1_000_000))


async def _stored(eyes: Eyes, run_id: str) -> Run | None:
    found = await eyes.backend.runs.find(run_id)
    return found.run if isinstance(found, Stored) else None


async def _nodes(site: StormSite) -> list[str]:
    """Every copy is whole again."""
    return [] if await caught_up(site) else [f"the nodes hold not the same; struck and not released: {site.hurt}"]


async def _stuck(eyes: Eyes, book: Book) -> list[str]:
    """Accepted, and without an end long after; or gone."""
    found = []
    for run in book.unfinished():
        stored = await _stored(eyes, run.run_id)
        if stored is None or not stored.is_terminal or run.kind is Kind.PACK:
            found.append(f"{run.tenant}'s {run.kind} {run.run_id}, accepted {_ago(run)}: {stored}")
    return found


def _ago(run: Accepted) -> str:
    return f"{time.monotonic() - run.at:.0f} s ago"


async def _shown(site: StormSite, eyes: Eyes, book: Book, readers: Readers) -> list[str]:
    """Every gateway shows every run, and all the same end. No gateway shows what came in through the door: that is
    looked up."""
    missing: list[str] = []
    gate = asyncio.Semaphore(16)

    async def look(run: Accepted, address: str) -> None:
        async with gate:
            if await readers.look(run, address) not in ENDS:
                missing.append(f"{address} does not show the end of {run.kind} {run.run_id}")

    seen = [run for run in book.runs.values() if run.tenant != DOOR]
    await asyncio.gather(*(look(run, address) for run in seen for address in site.addresses))
    for run in [each for each in book.runs.values() if each.tenant == DOOR]:
        began = time.monotonic()
        stored = await _stored(eyes, run.run_id)
        if stored is None or not stored.is_terminal:
            missing.append(f"{run.kind} {run.run_id} through the door has no end: {stored}")
        else:
            book.saw(run.run_id, stored.status.value, "store", began)
    return missing


async def _projection(eyes: Eyes, book: Book) -> list[str]:
    """Each pack is among the other runs, as it has ended."""
    deadline = time.monotonic() + _PROJECTED_SECONDS
    missing = [run for run in book.runs.values() if run.kind is Kind.PACK and run.end is not None]
    while True:
        shown = {run.run_id: await _stored(eyes, run.run_id) for run in missing}
        missing = [run for run in missing if not _is_shown(run, shown[run.run_id])]
        if not missing or time.monotonic() > deadline:
            return [f"pack {run.run_id} ended {run.end} and is shown as {shown[run.run_id]}" for run in missing]
        await asyncio.sleep(0.5)


def _is_shown(run: Accepted, stored: Run | None) -> bool:
    return stored is not None and stored.status.value == run.end


def _ends(site: StormSite, book: Book, found: Judgement) -> list[str]:
    """As they were asked for, and some of each kind well. A flow that has completed ran to its end once at least."""
    wrong = []
    ran = {line.split()[1] for line in _lines(site.note) if line.startswith("ended ")}
    for run in book.runs.values():
        if run.end is None:
            wrong.append(f"nobody has seen an end of {run.tenant}'s {run.kind} {run.run_id}")
            continue
        found.ends[run.kind][run.end] += 1
        if run.end not in run.wanted:
            wrong.append(f"{run.tenant}'s {run.kind} {run.run_id} ended {run.ends}, not {sorted(run.wanted)}")
        if run.kind is Kind.FLOW and run.end == "COMPLETED" and f"{run.tenant}-{run.key}" not in ran:
            wrong.append(f"{run.kind} {run.run_id} is said to have completed, and never ran")
    return wrong + [f"no {kind} has completed" for kind in Kind if not found.ends[kind]["COMPLETED"]]


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def _money(site: StormSite, load: Load) -> list[str]:
    """Nothing is reserved any more; what was credited is what was charged and what is left; each row is closed, each
    accepted run has one, each key one run, and none that was refused; who has failed did so because of a fault."""
    rows = await _rows(site)
    wrong = [f"row {row.run_id} is {row.status} {row.money}" for row in rows if not row.has_ended]
    closed = {Money.SETTLED, Money.REFUNDED, Money.NONE}
    wrong += [f"row {row.run_id} ended with its money {row.money}" for row in rows if row.money not in closed]
    wrong += _row_problems(rows, load.book.denied)
    by_id = {row.run_id: row for row in rows}
    for run in load.book.runs.values():
        if run.kind is Kind.PACK and by_id.get(run.run_id) is None:
            wrong.append(f"accepted pack {run.run_id} has no row")
        elif run.kind is Kind.PACK and run.end not in {None, by_id[run.run_id].status.value}:
            wrong.append(f"pack {run.run_id} was shown as {run.end} and is {by_id[run.run_id].status}")
    keys = Counter((row.tenant_id, row.idempotency_key) for row in rows if row.idempotency_key is not None)
    wrong += [f"key {key} has {count} runs" for key, count in keys.items() if count > 1]
    async with site.money() as priced:
        report = await audit(priced)
        wrong += [f"{each.tenant_id} {each.run_id}: {each.detail}" for each in report.differences]
        for tenant in site.tenants:
            sums = await priced.ledger.read(lambda tx, name=tenant.name: tx.journal.balances(name))  # type: ignore[misc]
            charged = sum(row.used_usd_micros for row in rows if row.tenant_id == tenant.name)
            given = site.credited[tenant.name] + load.credited.get(tenant.name, 0)
            has = await priced.budget.balance(tenant.name)
            if (sums.held_usd_micros, sums.charged_usd_micros, has) != (0, charged, given - charged):
                wrong.append(f"{tenant.name} was given {given}, its runs cost {charged}, it has {has}: {sums}")
    return wrong


def _row_problems(rows: Iterable[PricedRun], denied: Container[tuple[str, str | None]]) -> list[str]:
    """Runs that failed without a fault, and runs that were charged although they were refused."""
    wrong = []
    for row in rows:
        if row.status is Status.FAILED and row.reason_code not in _EXPLAINED:
            wrong.append(f"pack {row.run_id} failed, and no fault explains it: {row.reason_code} {row.error_detail}")
        is_there = row.used_usd_micros or row.status is Status.COMPLETED
        if is_there and (row.tenant_id, row.idempotency_key) in denied:
            wrong.append(f"{row.tenant_id}'s {row.idempotency_key} was refused: {row.status}, {row.used_usd_micros}")
    return wrong


async def _programs(site: StormSite, eyes: Eyes, book: Book) -> list[str]:
    """One terminal record each, no slot and no message left, a letter where one is due, a legal story."""
    run_ids = [run.run_id for run in book.runs.values() if run.kind is Kind.PROGRAM]
    letters = [letter["body"] for letter in await dead_letters(eyes.link, eyes.backend.config)]
    async with wiring.open_backend(site.config, "judge", grid=site.grid) as backend:
        await assert_exact(backend, run_ids, letters=letters, seconds=120.0)
        assert backend.programs is not None
        left = (await backend.programs.queue.totals()).messages
    return [f"{left} messages are left in the queue of programs"] if left else []


async def _letters(eyes: Eyes, found: Judgement) -> list[str]:
    """A dead letter tells of a run that has failed, and why. It may be there twice: rather two letters than none."""
    letters = [letter["body"] for letter in await dead_letters(eyes.link, eyes.backend.config)]
    found.letters = len(letters)
    wrong = []
    for run_id, reason in sorted({(str(letter["run_id"]), str(letter["reason"])) for letter in letters}):
        run = await _stored(eyes, run_id)
        if run is None or run.status is not RunState.FAILED or run.reason != reason:
            wrong.append(f"there is a letter of {run_id}, {reason}: {run}")
    return wrong


async def _queues(eyes: Eyes) -> list[str]:
    """Of flows, programs and packs."""
    infos = {stream: await eyes.link.insist(f"STREAM.INFO.{stream}", {}, dict[str, Any]) for stream in QUEUES}
    left = {stream: int(info["state"]["messages"]) for stream, info in infos.items()}
    return [f"{count} jobs are left in {stream}" for stream, count in left.items() if count]


async def _history(site: StormSite, recorder: Recorder, found: Judgement) -> list[str]:
    """Each record is a register that could have been; and each has its end, whether its caller was told yes or not."""
    deadline = time.monotonic() + _ABANDONED_SECONDS
    while (left := _open_records(history := await recorder.history())) and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
    found.writes, found.keys = history.writes, len(history.keys)
    wrong = [f"the record of {run_id} has no end: {facts}" for run_id, facts in left.items()]
    return wrong + [str(violation) for violation in check(history, stale_reads=site.nodes == 1)]


def _open_records(history: History) -> dict[str, Facts]:
    newest = {write.key: write.facts for write in history.committed}
    return {run_id: facts for run_id, facts in newest.items() if facts is not None and not facts.is_terminal}


def bad_exits(processes: Iterable[StormProcess]) -> list[str]:
    """Of those that ended by themselves: a crash is no answer to any fault."""
    return [f"{each.name} ended with {code}" for each in processes for code in each.exits if code not in _FAIR_CODES]


async def children_left(processes: Iterable[StormProcess], folder: Path) -> list[str]:
    """Stops everything in order, as for a shutdown: who does not go, and who is left of those it has started."""
    wrong = []
    started: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            started += psutil.Process(process.pid).children(recursive=True)
        was_forced = process.forced
        await process.terminate()
        if process.forced > was_forced:
            wrong.append(f"{process.name} does not end after SIGTERM")
    _, alive = await asyncio.to_thread(psutil.wait_procs, {*started, *_strays(folder)}, timeout=_END_SECONDS)
    for left in alive:
        with contextlib.suppress(psutil.Error):
            wrong.append(f"left behind: {left.pid} {' '.join(left.cmdline())[:200]}")
            left.kill()
    return wrong


def _strays(folder: Path) -> list[psutil.Process]:
    """Programs and hosts of earlier lives: whoever works below the site's folder, as each of its processes does."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder.resolve()):
                found.append(process)
    return found
