"""The scheme in CUDA C++, and what launches it: on a GPU, or for tests on the host."""
