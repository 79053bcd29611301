"""How a world of ranks comes to be."""
