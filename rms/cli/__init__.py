"""The command line: options and output of all commands."""
