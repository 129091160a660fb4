"""Calls of runs: replay, steps, sessions, workflows, and the worker."""
