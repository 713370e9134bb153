"""Each tenant's money, reserved and closed atomically: in the ledger's own tables, or in Redis."""
