"""The stored forms of runs: entries, the journal, payloads, mail, and the index."""
