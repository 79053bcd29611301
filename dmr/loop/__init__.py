"""A run in one process: how it is entered, its loop, what a resize point decides, its end."""
