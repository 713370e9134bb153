"""Packages that bring packs, as pip would leave them in a folder."""

from __future__ import annotations

from pathlib import Path

__all__ = ["GOOD", "Shelf"]

#: A module with a pack in it. Its executor does what its text says.
GOOD = """
import os, sys, time
from pyoco_server.packs import Member, Members, PackError, PackResult, PackSpec, text

FORM = Members({"text": Member(text(1, 100), is_required=True)})
PACK = PackSpec(name="words", executor="words_pack:execute", inputs=FORM, has_own_process=False)


def execute(inputs, ctx):
    print("what a tenant sent:", inputs)
    word = inputs["text"]
    if word == "hang":
        time.sleep(600)
    if word == "leave":
        os._exit(3)
    if word == "eat lines":
        for fd in (0, 1, 2):
            os.close(fd)
        sys.stdin = sys.stdout = sys.stderr = None
    return PackResult(data={"said": word.upper()}, actual_cost_usd_micros=1_000, meta={"words": {"pid": os.getpid()}})
"""


class Shelf:
    """A folder of packages. Their packs are available to processes that have it on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        module: str | None = None,
        *,
        package: str | None = None,
        module_name: str | None = None,
        place: str | None = None,
    ) -> None:
        """A pack of this name; `module` is the text of its module, GOOD unless it is told."""
        module_name = module_name or f"{name}_pack"
        text = GOOD.replace("words_pack", module_name).replace('"words"', f'"{name}"') if module is None else module
        (self.folder / f"{module_name}.py").write_text(text)
        package = package or name
        info = self.folder / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pyoco_server.packs]\n{name} = {place or f'{module_name}:PACK'}\n")
