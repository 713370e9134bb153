"""An in-process JetStream: the part of NATS that our adapters use, without a server, a socket or a thread."""
