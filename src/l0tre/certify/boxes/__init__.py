"""Proofs where changes stay local: pixels whose windows never meet are bounded apart, and their effects added up."""
