"""The users' commands."""
