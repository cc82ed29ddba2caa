"""Batch → trained network: the loop, its checkpoints, many processes, search."""
