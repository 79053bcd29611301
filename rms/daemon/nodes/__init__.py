"""Nodes: leases, node power, clocks, meters, the power cap."""
