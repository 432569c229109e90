"""Other libraries: their attacks as peers of ours, and our attack inside them."""
