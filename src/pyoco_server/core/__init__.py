"""What a run is: states, moves, records. Standard library only; no await, no clock, no environment, no I/O."""
