"""The command line: parse, one ``asyncio.run``, exit code. Nothing is decided here that a library user would need."""
