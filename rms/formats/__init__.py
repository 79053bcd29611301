"""Files that users and sites write: job scripts, clusters, workloads, traces."""
