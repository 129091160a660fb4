"""``holdfast runs``."""
