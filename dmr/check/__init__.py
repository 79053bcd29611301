"""What ``dmr check`` runs, and what it compares."""
