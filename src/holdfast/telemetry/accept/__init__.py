"""Acceptance of batches: each identity once, by whichever collector, with its bytes in the store before the answer."""
