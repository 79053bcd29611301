"""The HTTP interface: requests, routes, views, the live feed, metrics."""
