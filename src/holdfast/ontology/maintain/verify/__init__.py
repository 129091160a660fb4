"""Verification: everything that a store holds against everything else."""
