"""Algorithms: one file each, pure functions, no loop, no device, no runtime."""
