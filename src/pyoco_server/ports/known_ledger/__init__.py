"""Which ledger a deployment uses (SAFE-12)."""
