"""Load a classifier and see it as one graph of operations."""
