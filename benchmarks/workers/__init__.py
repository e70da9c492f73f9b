"""One process per contestant: warms up, then measures a sample of steady training whenever it is asked for one.

Nothing here imports shoal but shoal's own worker: the others run in the environments of their peers.
"""
