"""A soundness fuzzer: random networks with a known input that changes the decision, which no proof may cover."""
