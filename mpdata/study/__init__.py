"""Verification, convergence, speed."""
