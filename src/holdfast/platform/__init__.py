"""Composes the domains over one store."""
