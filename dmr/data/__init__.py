"""Distributed data: decompositions, fields, their redistribution."""
