"""What a test suite exercises of a network: its neurons, and criteria that count them."""
