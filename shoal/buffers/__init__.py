"""Buffers: what lies between the chunks that arrive and the batch that an update consumes."""
