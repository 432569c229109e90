"""Test generation: for every neuron the nearest input that activates it, or a proof that there is none."""
