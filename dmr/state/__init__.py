"""What travels with a job besides its fields: values, progress and records."""
