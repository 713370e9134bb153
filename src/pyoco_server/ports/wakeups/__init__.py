"""Wakeups between the processes of a grid."""
