"""Step programs: what a rank computes for a batch, described once and run by the native library."""
