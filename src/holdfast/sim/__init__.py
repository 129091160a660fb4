"""Real code in a simulated world: virtual time, one seed, a store that loses answers, processes that crash.

The protocols that run here are the production ones, over the production stack; only the surroundings are simulated.
A run is a function of its seed, so a failure is replayed by naming it.
"""
