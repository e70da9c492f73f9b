"""Learning in tables: exact where it can be, and as fast as the machine. Its own engine: a table does not pretend to be an algorithm."""
