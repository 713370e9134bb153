"""Migrations of the ledger's tables, in order. A released migration is never changed."""
