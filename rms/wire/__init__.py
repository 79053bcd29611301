"""Messages, HTTP and command-line habits: all of rms that compute nodes import."""
