"""What an event changes, what may be decided, and the power cap."""
