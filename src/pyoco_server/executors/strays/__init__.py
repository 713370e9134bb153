"""Strays: processes that outlive the run that started them. The same mechanism for flows, packs and programs (SAFE-6).

A reaper is the parent of everything a run starts and adopts its orphans, so the process tree itself shows what is left.
If the reaper was killed too, strays are found by the variables they were started with.
"""
