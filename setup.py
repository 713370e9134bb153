"""The package build. Everything declarative is in pyproject.toml; this adds the bundled dashboard and the examples."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from setuptools import setup  # type: ignore[import-untyped]
from setuptools.command.build_py import build_py  # type: ignore[import-untyped]

_BUNDLER = Path(__file__).parent / "tools" / "bundle_dashboard.py"
_EXAMPLES = Path(__file__).parent / "examples"


class BuildWithBundle(build_py):  # type: ignore[misc]  # setuptools is not typed
    """Adds `static/bundle` and `with_examples` to the built package. Without esbuild the dashboard is served as single
    modules."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        self._add_examples()
        self._bundle_dashboard()

    def _add_examples(self) -> None:
        """Copy the example flows into a folder of their own: `up --with-examples` adds it to the path of its workers,
        and no other program finds a module called `examples`."""
        folder = Path(self.build_lib, "pyoco_server", "with_examples", "examples")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in (*_EXAMPLES.glob("*.py"), *_EXAMPLES.glob("*.yaml")):
            shutil.copyfile(file, folder / file.name)

    def _bundle_dashboard(self) -> None:
        if not _BUNDLER.is_file():
            return
        spec = importlib.util.spec_from_file_location("bundle_dashboard", _BUNDLER)
        assert spec is not None
        assert spec.loader is not None
        bundler = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(bundler)
        if bundler.esbuild() is None:
            sys.stderr.write("esbuild is not installed (`make package` installs it): the dashboard is not bundled\n")
            return
        bundler.bundle(Path(self.build_lib, "pyoco_server", "doors", "dashboard", "static"))


setup(cmdclass={"build_py": BuildWithBundle})
