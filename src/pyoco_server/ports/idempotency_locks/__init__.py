"""What Redis may know besides the budget, and nobody may rely on: locks, mappings, leases, rates."""
