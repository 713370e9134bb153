"""A thin JetStream layer: one connection, acknowledged writes, reads from the leader, and a resuming watch."""
