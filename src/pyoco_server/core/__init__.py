"""Pure domain code: run states, transitions and records. Standard library only; no await, no clock, no environment, no
I/O."""
