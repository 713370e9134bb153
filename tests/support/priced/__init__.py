"""Helpers for tests of priced runs: ledgers, budgets, packs and their servers."""
