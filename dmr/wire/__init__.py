"""What ranks, worlds and the RMS say to one another."""
