"""How the ledger's tables came to be, one step after the other. A step that has been released is never changed."""
