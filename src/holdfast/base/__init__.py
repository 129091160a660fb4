"""The base of all packages: errors, clocks, ids, codecs, settings, telemetry, concurrency helpers.

Nothing here depends on object stores.
"""
