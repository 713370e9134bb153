"""What adapters in memory share: stores by name, entries that expire, and a network to simulate."""
