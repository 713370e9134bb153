"""`python -m bench.quiet nworker …`: a command of `pyoco-grid` whose workers believe that the machine is idle; or a
`pyoco-worker` of that kind.

Above 95% of the CPUs a worker asks for no more work (`WORKER_CPU_CAP`). A benchmark keeps all of them busy, so it would
measure that rule, and nothing else.
"""

from __future__ import annotations

import sys

from pyoco_server.doors.cli import worker
from pyoco_server.doors.cli.grid import group
from pyoco_server.loops.programs.cpu import CpuUse

if __name__ == "__main__":
    setattr(CpuUse, "share", lambda _: 0.0)  # noqa: B010 - a method is not assigned to; here it is
    if sys.argv[1] == "pyoco-worker":
        del sys.argv[1]
        worker.main()
    else:
        group.main()
