"""Meters, and the agent that runs on a node."""
