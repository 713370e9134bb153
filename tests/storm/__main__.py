"""`python -m storm`: see `--help`. The same as `make chaos`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from storm.run import chosen, run
from storm.site import LAYOUTS

_EXAMPLES = """\
examples:
  PYTHONPATH=tests python -m storm --minutes 10
  PYTHONPATH=tests python -m storm --minutes 2 --seed 7 --layout three
  PYTHONPATH=tests python -m storm --minutes 1 --layout one --faults kill,wire
"""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="storm",
        description="A whole deployment under load and under fault, and a judge who knows what was promised. Exits 1 "
        "when a promise was broken, and says where the logs are.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of storm, over all layouts together [2]")
    parser.add_argument("--seed", type=int, help="the same seed, the same dice [a new one]")
    parser.add_argument("--layout", choices=[*LAYOUTS, "both"], default="both", help="number of NATS nodes [both]")
    parser.add_argument("--faults", default="", metavar="A,B", help="only those whose names hold one of these words")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep logs there, whatever happens [a new folder]")
    parser.add_argument("--list", action="store_true", help="name all faults, and end")
    return parser.parse_args()


def main() -> int:
    options = _options()
    faults = chosen(options.faults)
    if options.list or not faults:
        print("\n".join(fault.name for fault in chosen("")))
        return 0 if options.list else 2
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    print(f"SEED={seed}", flush=True)
    layouts = list(LAYOUTS) if options.layout == "both" else [options.layout]
    top = options.logs or Path(tempfile.mkdtemp(prefix="pyoco-storm-"))
    is_broken = False
    for layout in layouts:
        folder = top / layout
        folder.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(filename=folder / "storm.log", force=True)  # what our own connections have to say
        report = asyncio.run(run(layout, options.minutes * 60 / len(layouts), seed, folder, faults, _say))
        print("\n".join(report.lines()), flush=True)
        is_broken |= bool(report.violations)
    if is_broken or options.logs is not None:
        print(f"logs: {top}")
    else:
        shutil.rmtree(top, ignore_errors=True)
    print(f"SEED={seed}")
    return 1 if is_broken else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
