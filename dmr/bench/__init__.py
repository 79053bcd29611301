"""What a resize costs."""
