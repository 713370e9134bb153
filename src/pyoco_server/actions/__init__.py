"""What may be done: one verb per file, through ports alone. A docstring says the order, the cost, and what a crash
leaves behind."""
