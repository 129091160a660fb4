"""Our object stack against the bare client under it: what do settling, retrying and counting cost?"""
