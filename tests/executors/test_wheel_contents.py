"""What pip made of a wheel, read on the worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from pyoco_server.core.wheel_needs import Needs
from pyoco_server.errors import InvalidWheel
from pyoco_server.executors.wheels import contents
from support.wheels import wheel_files


class TestWhatPipMade:
    NEEDY: ClassVar[dict[str, bytes]] = wheel_files("My.Tasks", "1.0.0", requires=["needed-thing>=2"])

    def needs(self, home: Path, files: Mapping[str, bytes]) -> Needs:
        for path, data in files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_bytes(data)
        return contents.needs_of_directory(home, "my-tasks", "1.0")

    def test_tells_what_it_needs(self, tmp_path: Path) -> None:
        needs = self.needs(tmp_path, self.NEEDY)
        assert [str(each) for each in needs.requires] == ["needed-thing>=2"]

    @pytest.mark.parametrize("other", ["a-1.dist-info", "z-1.dist-info", "z-1.DIST-INFO", "z.egg-info"])
    def test_must_be_one_package(self, tmp_path: Path, other: str) -> None:
        """Whichever of two is found first, its needs would not be those of the wheel."""
        with pytest.raises(InvalidWheel, match=f"of my-tasks 1.0 pip made .*{other}"):
            self.needs(tmp_path, {**self.NEEDY, f"{other}/METADATA": b"Name: z\n"})

    @pytest.mark.parametrize(("package", "version"), [("other", "1.0"), ("my-tasks", "1.1"), ("my-tasks", "one")])
    def test_must_be_the_wheel_itself(self, tmp_path: Path, package: str, version: str) -> None:
        with pytest.raises(InvalidWheel, match=r"of my-tasks 1\.0 pip made '"):
            self.needs(tmp_path, wheel_files(package, version))

    def test_must_be_something(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidWheel, match="pip made nothing"):
            self.needs(tmp_path, {"my_tasks.py": b""})
