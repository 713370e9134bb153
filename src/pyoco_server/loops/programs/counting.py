"""Count the jobs of this process, for its own metrics (section 23.1)."""

from __future__ import annotations

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.core.run import Run
from pyoco_server.loops.programs.meter import ProgramMeter

__all__ = ["count_end", "count_put_back"]


def count_end(meter: ProgramMeter, run: Run) -> None:
    """Count a run that this process ended."""
    program = run.program
    if program is None:
        return
    meter.end(program.exec_name, run.status, program.run_seconds)
    if program.dlq_due:
        meter.dead_letter(program.exec_name, run.reason or "execution_error")


def count_put_back(meter: ProgramMeter, attempt: ProgramAttempt) -> None:
    """Count an attempt that was put back, or whose run ended because its retry budget was spent."""
    run = attempt.run
    if run.is_terminal:
        count_end(meter, run)
    elif run.earlier_attempts:
        meter.retry(attempt.job.exec_name, str(run.earlier_attempts[-1].get("why")))
