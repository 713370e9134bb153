"""Which callables of plug-ins and wheels a flow file may name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import FlowNotResolved
from pyoco_server.executors.flow.paths import forget_modules, place_wheels, remove_wheels
from support.callable_modules import build, builder, calling, folder, job, names, refusal_of, unique, written

__all__ = ["build", "folder", "names"]

PLUG_IN = """
import subprocess
from subprocess import run

def work():
    return 1

def register(registry):
    registry.register_callable(work, name="demo/work")
"""


def distribution(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


class TestAPlugIn:
    def test_offers_its_package_by_callable_and_its_tasks_by_use(self, folder: Path) -> None:
        """DESIGN 7, ENG-54"""
        package = unique("plug")
        written(folder, **{package: PLUG_IN})
        distribution(folder, package, f"[pyoco.tasks]\nplug = {package}:register\n")
        build = builder()
        assert build(calling(f"{package}:work"))
        assert build(job("tasks: {it: {use: demo/work}}\nflow: {graph: it}"))
        assert "belongs to subprocess" in refusal_of(build, f"{package}:run")

    @pytest.mark.parametrize("group", ["console_scripts", "pyoco.task", "pyoco", "pyoco.tasks.more"])
    def test_of_another_group_offers_nothing(self, folder: Path, group: str) -> None:
        package = unique("plug")
        written(folder, **{package: PLUG_IN})
        distribution(folder, package, f"[{group}]\ndemo/work = {package}:register\n")
        build = builder()
        refusal_of(build, f"{package}:work")
        for name in ("demo/work", package, f"{package}:work"):
            with pytest.raises(FlowNotResolved):
                build(job(f"tasks: {{it: {{use: '{name}'}}}}\nflow: {{graph: it}}"))
        assert package not in sys.modules

    @pytest.mark.parametrize("value", ["os:system", "subprocess:run", "pyoco_server.wiring:versions"])
    def test_that_points_into_the_library_or_the_worker_does_not_offer_those(self, folder: Path, value: str) -> None:
        distribution(folder, unique("odd"), f"[pyoco.tasks]\nodd = {value}\n")
        refusal_of(builder(), value)

    @pytest.mark.parametrize("value", ["", "::", "no_such_module:x", "nothing"])
    def test_that_is_broken_hurts_nobody_else(self, folder: Path, value: str) -> None:
        package = unique("plug")
        written(folder, **{package: PLUG_IN})
        distribution(folder, unique("odd"), f"[pyoco.tasks]\nodd = {value}\n")
        distribution(folder, package, f"[pyoco.tasks]\nplug = {package}:register\n")
        assert builder()(job("tasks: {it: {use: demo/work}}\nflow: {graph: it}"))

    def test_in_a_shared_namespace_offers_its_own_part_of_it(self, folder: Path) -> None:
        space = unique("company")
        for name in ("plug", "secrets"):
            (folder / space / name).mkdir(parents=True)
            (folder / space / name / "__init__.py").write_text(PLUG_IN)
        distribution(folder, "one", f"[pyoco.tasks]\nplug = {space}.plug:register\n")
        build = builder()
        assert build(calling(f"{space}.plug:work"))
        refusal_of(build, f"{space}.secrets:work")


class TestAWheel:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Path]:
        place = tmp_path / "wheel"
        place.mkdir()
        place_wheels([str(place)])
        yield place
        remove_wheels([str(place)])
        forget_modules([str(place)])

    def test_offers_its_modules(self, place: Path) -> None:
        module = unique("wheel")
        written(place, **{module: PLUG_IN})
        build = builder(environment=Environment((str(place),), (module,)))
        assert build(calling(f"{module}:work"))
        assert "belongs to subprocess" in refusal_of(build, f"{module}:run")
        refusal_of(builder(), f"{module}:work")

    def test_does_not_offer_what_it_merely_has_the_name_of(self, place: Path, folder: Path) -> None:
        """The worker's own module comes first on the path, and is not on offer; nor is a part of the library."""
        module = unique("twin")
        written(place, **{module: PLUG_IN, "random": PLUG_IN, "yaml": PLUG_IN})
        written(folder, **{module: "raise SystemExit('imported')\n"})
        build = builder(environment=Environment((str(place),), (module, "random", "yaml", "pyoco")))
        for path in (f"{module}:work", "random:work", "random:Random", "yaml:load", "pyoco:run"):
            refusal_of(build, path)
        assert module not in sys.modules

    def test_offers_its_own_part_of_a_namespace(self, place: Path, folder: Path) -> None:
        """What is installed on the worker below the same name is not on offer, and not imported to find out."""
        space = unique("company")
        for home, name in ((place, "flows"), (folder, "secrets")):
            (home / space / name).mkdir(parents=True)
            (home / space / name / "__init__.py").write_text(PLUG_IN)
        build = builder(environment=Environment((str(place),), (space,)))
        assert build(calling(f"{space}.flows:work"))
        refusal_of(build, f"{space}.secrets:work")
        assert f"{space}.secrets" not in sys.modules

    @pytest.mark.parametrize("target", ["yaml:load", "os:system", "pyoco_server.wiring:versions"])
    def test_cannot_offer_others_by_an_entry_point(self, place: Path, target: str) -> None:
        distribution(place, unique("odd"), f"[pyoco.tasks]\nodd = {target}\n")
        refusal_of(builder(environment=Environment((str(place),), ())), target)
