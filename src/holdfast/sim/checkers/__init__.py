"""Judges of histories. They take plain data and share no code with what they judge."""
