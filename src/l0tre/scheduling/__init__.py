"""Units of work that do not depend on each other: done in this process, or by the workers of a cluster."""
