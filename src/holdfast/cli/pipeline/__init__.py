"""``holdfast pipeline``, ``holdfast audit`` and ``holdfast gc``."""
