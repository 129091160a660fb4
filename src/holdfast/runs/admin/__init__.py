"""Runs looked at and changed without their code: describe, control, fork, delete, audit."""
