"""The acts of ``holdfast demo``: each shows one thing that Holdfast promises, on a real store, and checks it.

A new act is an async function that takes a ``Stage`` and returns what it measured, and an entry in ``programme.py``.
"""
