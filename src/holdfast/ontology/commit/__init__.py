"""Commits: intents against what is current, one attempt after another, the head by compare-and-swap."""
