"""The words of the scheduler: sites, nodes, jobs, events, speedups, contention."""
