"""The limit to measure programs against: a loop that starts an executable and waits for its end, and nothing else.

    python -m bench.bare_exec [SECONDS [SLOTS [PROGRAM]]]

No directory, no pipe, no copy of the program: `posix_spawn`, which is vfork and exec in C, and `waitpid`. So it is what
a loop in C would do, but for some microseconds.
"""

from __future__ import annotations

import os
import sys
import time

__all__ = ["bare_exec", "fork_exec"]


def bare_exec(program: str, count: int, slots: int) -> float:
    """Starts per second of `count` programs that exit at once, `slots` at a time. Has no other children meanwhile."""
    argv, environment = (program,), {"PATH": os.defpath}
    spawn, wait = os.posix_spawn, os.waitpid
    began = time.perf_counter()
    for _ in range(min(slots, count)):
        spawn(program, argv, environment)
    for _ in range(count - slots):
        wait(-1, 0)
        spawn(program, argv, environment)
    for _ in range(min(slots, count)):
        wait(-1, 0)
    return count / (time.perf_counter() - began)


def fork_exec(program: str, count: int, slots: int) -> float:
    """The same with `fork` and `exec`, as books have it: a copy of this process, small as it is, for each start."""
    argv, environment = (program,), {"PATH": os.defpath}
    running, began = 0, time.perf_counter()
    for _ in range(count):
        if running == slots:
            os.waitpid(-1, 0)
            running -= 1
        if os.fork() == 0:
            os.execve(program, argv, environment)
        running += 1
    for _ in range(running):
        os.waitpid(-1, 0)
    return count / (time.perf_counter() - began)


def main() -> None:
    seconds, slots, program = (*sys.argv[1:], *("3", "4", "/bin/true")[len(sys.argv) - 1 :])
    rate = bare_exec(program, 200, int(slots))
    rate = bare_exec(program, max(200, int(rate * float(seconds))), int(slots))
    print(f"{rate:,.0f} per second, {slots} at a time: {program}")


if __name__ == "__main__":
    main()
