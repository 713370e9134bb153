"""The command line. A module per command, each started through `shell.run`; nothing heavy is imported for `--help`."""
