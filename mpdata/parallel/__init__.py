"""The solver on MPI ranks."""
