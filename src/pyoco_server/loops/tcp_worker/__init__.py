"""The worker over TCP: takes jobs from a door, runs them, and keeps each result until a door has it (section 15)."""
