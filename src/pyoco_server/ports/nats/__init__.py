"""Our thin JetStream layer: one connection, acked writes, leader reads, a watch that survives, credits."""
