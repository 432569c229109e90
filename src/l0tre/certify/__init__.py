"""Certified lower bounds: proofs over all real values, by branch and bound over cells and budgets."""
