"""The door for agents: tools over `/v1`, on the gateway at `/mcp/` and as the command `pyoco-mcp`."""
