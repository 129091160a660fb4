"""What a fleet costs: requests and bytes of a simulated one, and dollars per month from them."""
