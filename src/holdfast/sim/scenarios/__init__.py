"""The scenarios of Holdfast's own protocols. Every module here is looked through; adding one is enough."""
