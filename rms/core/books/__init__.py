"""Energy: who held which node when, what it drew, by model and as measured."""
