"""Apps: flows as Python functions, submitted and read with their types (section 9 of the contract).

The user's side. It reaches the server with the HTTP clients alone; the host of a worker imports it together with the
user's module, so nothing here imports the clients, a web framework or NATS before it is needed.
"""
