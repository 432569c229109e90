"""The paper's algorithm: subspace sensitivities, accumulation, tightening (guarantee: the grid)."""
