"""Branch and bound over cells of groups."""
