"""The numerics in Numba."""
