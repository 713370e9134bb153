"""Every kind of misfortune there is."""

from __future__ import annotations

from storm.faults.clocks import MovedClock
from storm.faults.disks import FullDisk, SlowDisk
from storm.faults.duplicates import Duplicates
from storm.faults.isolation import IsolatedNode
from storm.faults.processes import (
    KillNode,
    KillPair,
    KillProcess,
    RestartNode,
    RestartProcess,
    StopNode,
    StopProcess,
)
from storm.faults.wires import CutWire, FrozenWire, OneWayWire, SlowWire
from storm.port import Fault

__all__ = ["all_faults"]


def all_faults() -> list[Fault]:
    """New ones for each storm: some remember what they have seen."""
    return [
        KillProcess(),
        KillPair(),
        StopProcess(),
        RestartProcess(),
        KillNode(),
        StopNode(),
        RestartNode(),
        CutWire(),
        FrozenWire(),
        OneWayWire(),
        SlowWire(),
        FullDisk(),
        SlowDisk(),
        MovedClock(),
        Duplicates(),
        IsolatedNode(),
    ]
