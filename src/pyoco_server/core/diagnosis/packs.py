"""Rules about the packs of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyoco_server.core.diagnosis.facts import Facts, Packs, Unknown, Workers
from pyoco_server.core.diagnosis.finding import Remark, danger, note, ok, some, warning
from pyoco_server.core.diagnosis.priced_facts import Absent, PricedFacts
from pyoco_server.core.packs.ability import is_pack_worker
from pyoco_server.core.packs.ocr import LANGUAGE
from pyoco_server.core.worker_record import WorkerRecord

__all__ = ["executed", "files", "installed", "reads_images", "test_allow", "unexecuted"]


def installed(facts: Facts) -> Iterator[Remark]:
    packs = facts.machine.packs
    if packs is None:
        return
    if packs.strangers:
        yield danger(
            f"PYOCO_PACKS names packs that are not installed here: {', '.join(packs.strangers)}",
            "no gateway and no worker starts with it",
            f"install it, or correct PYOCO_PACKS; there are: {', '.join(packs.known)}",
            about="PYOCO_PACKS",
        )
    for name, package, why in packs.left_out:
        yield warning(
            f"the pack {name} of {package} is left out: {why}",
            "it cannot be requested, and workers here do not execute it",
            f"repair {package}, or uninstall it",
            about=name,
        )
    if packs.offered:
        yield ok(f"packs: {', '.join(packs.offered)}")


def unexecuted(
    packs: Packs | None,
    priced: PricedFacts | Unknown | None,
    workers: Workers,
    now: float,
    disconnect_seconds: float,
) -> tuple[str, ...] | None:
    """Return the offered packs that no live worker executes. None: unknown, because there is no ledger, no live worker,
    or a worker whose version does not report its packs."""
    if packs is None or not isinstance(priced, PricedFacts) or isinstance(priced.ledger, Absent):
        return None
    living = [record.packs for record in workers.records if record.is_alive(now, disconnect_seconds)]
    if not living or None in living:
        return None
    served = {name for names in living for name in names or ()}
    return tuple(name for name in packs.offered if name not in served)


def _lacking(living: Sequence[WorkerRecord]) -> Iterator[Remark]:
    """SAFE-3: packs that workers cannot execute, as they report."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for record in living:
        for pack, why in (record.packs_missing or {}).items():
            lacking.setdefault((pack, why), []).append(record.worker_id)
    for (pack, why), workers in sorted(lacking.items()):
        yield warning(
            f"{pack} cannot be executed by {some(tuple(workers), 5)}: {why}",
            "the pack is offered only while another worker executes it",
            "install or repair what is missing; workers notice it within half a minute",
            about=pack,
        )


def executed(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.workers, Workers):
        return
    seconds = facts.wishes.disconnect_seconds
    missing = unexecuted(facts.machine.packs, facts.priced, facts.workers, facts.now, seconds)
    living = [record for record in facts.workers.records if record.is_alive(facts.now, seconds)]
    yield from _lacking(living)
    if missing:
        are_refused = any(map(is_pack_worker, living))
        yield warning(
            f"packs that are offered, and executed by no worker: {', '.join(missing)}",
            "submissions of them are refused with 422"
            if are_refused
            else "their runs wait until they are given up and refunded",
            "give workers what the gateways have: the same packages, PYOCO_PACKS and PYOCO_LEDGER_URL; "
            "the log of a worker says what it leaves out, and why",
        )
    elif missing is not None:
        yield ok("every pack that is offered is executed by a worker")


def files(facts: Facts) -> Iterator[Remark]:
    packs = facts.machine.packs
    for problem in packs.bad_files if packs is not None else ():
        variable = problem.partition(":")[0]
        yield danger(problem, "no worker starts with it", f"correct {variable}, or unset it", about=variable)


def reads_images(facts: Facts) -> Iterator[Remark]:
    packs = facts.machine.packs
    if packs is None or "ocr" not in packs.offered:
        return
    if packs.ocr_engine is None:
        yield note(
            "the pack ocr has nothing here that reads images",
            "a worker on this machine does not execute it; a gateway needs none",
            "install tesseract-ocr with the data of its languages, or: pip install 'pyoco-server[ocr]'; "
            "or leave ocr out by PYOCO_PACKS",
        )
        return
    engine, languages = packs.ocr_engine, packs.ocr_languages
    if isinstance(languages, Unknown):
        yield note(
            f"{engine} does not say what it can read: {languages.why}",
            "a worker on this machine does not execute ocr; a gateway needs no engine",
            f"install {engine} anew",
        )
        return
    reads = f"images are read by {engine}; languages: {some(languages, 12) or 'none'}"
    if missing := [code for code in LANGUAGE.split("+") if code not in languages]:
        yield note(
            f"{reads}; missing: {', '.join(missing)}",
            f"runs of ocr that name no language are read as {LANGUAGE}, which no worker like this one can execute",
            f"apt-get install tesseract-ocr {' '.join(f'tesseract-ocr-{code}' for code in missing)}, or name the "
            "language in each request",
        )
    else:
        yield ok(reads)


def test_allow(facts: Facts) -> Iterator[Remark]:
    packs = facts.machine.packs
    if packs is not None and packs.test_allow:
        yield danger(
            f"PYOCO_URL_PACK_TEST_ALLOW={packs.test_allow} is set, which is for tests alone",
            "anyone who may submit a run can reach that address through the url pack",
            "unset PYOCO_URL_PACK_TEST_ALLOW",
        )
