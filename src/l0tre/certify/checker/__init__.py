"""Certificates and the checker, which shares the graph with the prover and nothing else."""
