"""The demo: one module per act, what they work with (``stage``), and the program that is killed (``victim``)."""
