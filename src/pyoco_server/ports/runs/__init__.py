"""The record of every flow and program run."""
