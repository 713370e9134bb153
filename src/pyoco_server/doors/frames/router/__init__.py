"""A router: one door in front of several groups (section 17.4)."""
