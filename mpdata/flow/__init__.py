"""Face values of the flow, constant or changing in time."""
