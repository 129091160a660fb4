"""``holdfast onto`` and ``holdfast sql``."""
