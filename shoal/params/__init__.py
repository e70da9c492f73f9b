"""Parameters that several workers change: what they push, and the one place that applies it."""
