"""What may be done with priced runs and their money: one verb per file, through ports alone, no float anywhere."""
