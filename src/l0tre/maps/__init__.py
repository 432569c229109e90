"""Saliency maps: how far each pixel alone can move a score or a neuron, exactly or from the strongest pixels on."""
