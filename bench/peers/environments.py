"""A virtual environment for each peer, below `.bench/peers`, from its own locked requirements."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["HOME", "REQUIREMENTS", "environment_of", "is_current"]

_ROOT = Path(__file__).parent.parent.parent
HOME = _ROOT / ".bench" / "peers"
REQUIREMENTS = Path(__file__).parent / "requirements"
_INSTALL_SECONDS_MAX = 600


def environment_of(peer: str) -> Path:
    """The Python of its environment, made now if there is none or its requirements have changed since.

    Raises CalledProcessError when pip fails; what it has said is in `stderr`.
    """
    folder = HOME / peer
    python = folder / "bin" / "python"
    if is_current(peer):
        return python
    print(f"   installing {peer} into {folder.relative_to(_ROOT)}", flush=True)
    venv.create(folder, clear=True, with_pip=False)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--require-hashes"]
    subprocess.run(
        [*install, "-r", str(REQUIREMENTS / f"{peer}.txt")],
        check=True,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS_MAX,
    )
    (folder / "installed").write_text(_mark(peer))
    return python


def is_current(peer: str) -> bool:
    """Whether it is installed, and just what its requirements say, for this Python."""
    mark = HOME / peer / "installed"
    return mark.exists() and mark.read_text() == _mark(peer)


def _mark(peer: str) -> str:
    return f"{sys.version}\n{hashlib.sha256((REQUIREMENTS / f'{peer}.txt').read_bytes()).hexdigest()}\n"
