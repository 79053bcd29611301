"""Energy: spans of nodes, and the books by model and measurement."""
