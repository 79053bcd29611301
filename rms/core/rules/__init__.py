"""Changes by events, checks of decisions, and the power cap."""
