"""MPDATA on one block: the readable NumPy reference and the same functions in Numba."""
