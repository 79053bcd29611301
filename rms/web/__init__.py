"""The live page of a running daemon: ``rms web``."""
