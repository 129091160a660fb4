"""What all packages build on: errors, clocks, ids, codecs, settings, telemetry, concurrency helpers.

Nothing here knows about object stores.
"""
