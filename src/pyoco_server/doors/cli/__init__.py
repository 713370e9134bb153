"""The command line: a module per command, each started through `shell.run`. `--help` imports nothing heavy."""
