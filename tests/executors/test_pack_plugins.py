"""Packs that others ship: what is good is offered, and what is bad is left out and told."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server import packs as public
from pyoco_server.config.packs import PackConfig
from pyoco_server.config.priced import PricedConfig
from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.spec import Here, PackCheckFailed
from pyoco_server.errors import SettingError
from pyoco_server.executors.packs.plugins import installed_packs, known_names
from pyoco_server.wiring import offer as wiring_offer
from support.priced.pack_plug_ins import GOOD, Shelf

ROOT = Path(__file__).parents[2]
HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """Put on sys.path; what was imported from it is forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield Shelf(tmp_path)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_pack_of_a_wheel_stands_beside_ours(shelf: Shelf) -> None:
    shelf.add("words")
    installed = installed_packs()
    assert installed.left_out == ()
    assert [*installed.packs] == [*PACKS, "words"]
    spec = installed.packs["words"]
    assert (spec.executor, spec.has_own_process) == ("words_pack:execute", True)  # whatever it says itself
    assert spec.check({"text": "a"}, HERE) == ()
    assert [problem.loc for problem in spec.check({"text": ""}, HERE)] == [("text",)]
    assert known_names() == (*PACKS, "words")


def test_without_any_there_are_ours() -> None:
    assert installed_packs().packs == PACKS
    assert known_names() == tuple(PACKS)


#: What is wrong with a pack, its module, and what is told.
BROKEN: dict[str, tuple[str, str]] = {
    "raises": ("raise ValueError('no licence')", "cannot be imported: ValueError: no licence"),
    "wants more": ("import no_such_package_at_all", "No module named 'no_such_package_at_all'"),
    "exits": ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
    "is odd": ("class Odd(BaseException): pass\nraise Odd", "cannot be imported: Odd"),
    "cannot be printed": (
        "class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd",
        "cannot be imported: Odd",
    ),
    "is no Python": ("def (", "cannot be imported: SyntaxError"),
    "has no PACK": ("SPEC = 1", "cannot be imported: AttributeError"),
    "is no spec": ("PACK = {'name': 'words'}", "names no PackSpec, but: dict"),
    "has another name": (GOOD.replace('"words"', '"others"'), "not that of its entry point"),
    "has no executor": (GOOD.replace("words_pack:execute", ""), "names no executor"),
    "has an executor of no form": (GOOD.replace("words_pack:execute", "words_pack.execute"), "names no executor"),
    "ends the process": ("import os; os._exit(0)", "ends the process"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "ends the process"),
}


def test_each_broken_pack_is_left_out_and_told_with_its_package(shelf: Shelf) -> None:
    """All in one: a process is started for each."""
    for number, (module, _) in enumerate(BROKEN.values()):
        shelf.add(f"words{number}", module.replace('"words"', f'"words{number}"'), package=f"words-{number}")
    shelf.add("good")
    installed = installed_packs(seconds=100.0)
    assert [*installed.packs] == [*PACKS, "good"]
    told = {each.package: each for each in installed.left_out}
    for number, (what, (_, why)) in enumerate(BROKEN.items()):
        assert why in told[f"words-{number} 1.0"].why, what
        assert told[f"words-{number} 1.0"].name == f"words{number}"
    assert len(told) == len(BROKEN)


def test_an_import_that_hangs_costs_its_own_pack_and_no_more_than_its_time(shelf: Shelf) -> None:
    shelf.add("words", "import time; time.sleep(600)")
    shelf.add("good")
    began = time.monotonic()
    installed = installed_packs(seconds=5)  # far more than the good one needs
    assert time.monotonic() - began < 200
    assert "good" in installed.packs
    assert "does not come to an end within 5 s" in installed.left_out[0].why


def test_an_import_that_prints_and_reads_is_not_heard(shelf: Shelf, capfd: pytest.CaptureFixture[str]) -> None:
    shelf.add("words", "print('hello from an import')\n" + GOOD)
    assert "words" in installed_packs().packs
    assert capfd.readouterr() == ("", "")


def test_names_are_taken_once(shelf: Shelf) -> None:
    shelf.add("decision")
    shelf.add("words", package="words-a", module_name="words_a")
    shelf.add("words", package="words-b", module_name="words_b")
    shelf.add("Words")
    shelf.add("no_place", place="nowhere")
    installed = installed_packs()
    assert installed.packs == PACKS
    told = {each.package: each.why for each in installed.left_out}
    assert "comes with pyoco-server" in told["decision 1.0"]
    assert "another package" in told["words-a 1.0"]
    assert "another package" in told["words-b 1.0"]
    assert "not named like a pack" in told["Words 1.0"]
    assert "no form such as" in told["no_place 1.0"]


def test_whoever_is_not_asked_for_is_not_imported(shelf: Shelf) -> None:
    shelf.add("words")
    shelf.add("other")
    assert [*installed_packs(("decision", "words")).packs] == ["decision", "words"]
    assert "words_pack" in sys.modules
    assert "other_pack" not in sys.modules


class TestTheSetting:
    def test_names_what_is_offered(self, shelf: Shelf) -> None:
        shelf.add("words")
        assert set(wiring_offer.offered_packs(PricedConfig())) == {*PACKS, "words"}
        assert set(wiring_offer.offered_packs(PricedConfig(packs=("words",)))) == {"words"}

    def test_that_names_what_is_not_there_stops_the_start(self, shelf: Shelf) -> None:
        shelf.add("words")
        with pytest.raises(SettingError, match=r"PYOCO_PACKS='wrods,decision' has wrods, .* there are: .*, words"):
            wiring_offer.offered_packs(PricedConfig(packs=("wrods", "decision")))

    def test_is_no_reason_for_a_keeper_not_to_start(self, shelf: Shelf) -> None:
        """SAFE-1: it checks the prices of what is installed beside it, and of the built-in packs."""
        shelf.add("words")
        assert set(wiring_offer.known_packs(PricedConfig(packs=("words", "elsewhere")))) == {*PACKS, "words"}
        assert set(wiring_offer.known_packs(PricedConfig())) == {*PACKS, "words"}

    def test_that_names_a_broken_one_is_no_reason_not_to_start(
        self, shelf: Shelf, caplog: pytest.LogCaptureFixture
    ) -> None:
        shelf.add("words", "raise ValueError")
        assert set(wiring_offer.offered_packs(PricedConfig(packs=("words", "decision")))) == {"decision"}
        (line,) = [record for record in caplog.records if "cannot be offered" in record.getMessage()]
        assert "words 1.0" in str(line.__dict__)


@pytest.mark.parametrize(
    "check",
    [
        "lambda inputs: 1 / 0",
        "lambda inputs: exit(str(inputs))",
        "lambda inputs: ['must not']",
        "lambda inputs: None",
    ],
)
def test_a_check_that_fails_costs_its_request_and_quotes_nothing(shelf: Shelf, check: str) -> None:
    """PRICED-171: it is an Exception, which the door answers with 500; no SystemExit ends the gateway."""
    shelf.add("words", GOOD.replace("inputs=FORM", f"inputs={check}"))
    spec = installed_packs().packs["words"]
    with pytest.raises((RuntimeError, TypeError), match="the check of a pack") as raised:
        spec.check({"text": "marker-7a1f"}, HERE)
    assert "marker" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize("price", ["lambda inputs, prices: 1 / 0", "lambda inputs, prices: '5'"])
def test_a_price_that_fails_costs_its_request_and_quotes_nothing(shelf: Shelf, price: str) -> None:
    """PRICED-171, SAFE-1"""
    shelf.add("words", GOOD.replace("inputs=FORM", f"inputs=FORM, price={price}"))
    with pytest.raises(PackCheckFailed, match="the check of a pack"):
        installed_packs().packs["words"].least_reservation({"text": "a"}, PackConfig().prices)


@pytest.mark.parametrize(("key", "is_fine"), [("dpp/acme/u1/a.png", True), ("dpp/other/u1/a.png", False), ("", False)])
def test_a_run_may_name_files_of_its_own_tenant_alone(shelf: Shelf, key: str, is_fine: bool) -> None:
    """PRICED-147: whether the pack minds or not"""
    shelf.add("words", GOOD.replace("inputs=FORM", "inputs=lambda _: (), files=lambda inputs: (inputs['key'],)"))
    spec = installed_packs().packs["words"]
    assert (spec.check({"key": key}, HERE) == ()) == is_fine
    assert spec.files({"key": key}) == (key,)


def test_what_authors_need_is_public_and_costs_a_gateway_nothing() -> None:
    assert all(hasattr(public, name) for name in public.__all__)
    heavy = {"asyncio", "fastapi", "httpx", "nats", "pydantic", "sqlalchemy", "starlette", "yaml"}
    look = f"import sys, pyoco_server.packs; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", look], check=True, timeout=60)


def test_the_guide_shows_the_example_as_it_is() -> None:
    folder = ROOT / "examples" / "word_count_pack"
    example = "\n".join(path.read_text() for path in (*folder.rglob("*.py"), folder / "pyproject.toml"))
    page = (ROOT / "docs" / "packs" / "writing-a-pack.md").read_text()
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    shown = [block for block in blocks if "PACK = " in block or "def execute" in block or "entry-points" in block]
    assert len(shown) == 3
    for block in shown:
        for part in block.strip().split("\n\n"):
            assert part in example


def test_the_guides_own_pieces_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "word_count_pack")
    page = (ROOT / "docs" / "packs" / "writing-a-pack.md").read_text()
    pieces = re.findall(r"```python\n((?:import|from pyoco_server.packs import Problem).*?)```", page, re.DOTALL)
    assert len(pieces) == 2
    names: dict[str, Any] = {}
    for piece in pieces:
        exec(piece, names)
    assert names["even"](2, ("n",)) == ()
    assert [problem.loc for problem in names["even"](3, ("n",))] == [("n",)]
