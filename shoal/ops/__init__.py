"""Stateless mathematics: one equation per function, with its source."""
