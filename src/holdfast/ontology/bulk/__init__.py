"""Bulk loads, and import and export of files."""
