"""Benchmarks: `make bench` prints the targets with the machine and the settings. They fail on no figure."""
