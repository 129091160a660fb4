def close(told):  # FIRES
    """Whoever closes it ends it."""  # FIRES
    # Nobody waits for this.  # FIRES
    raise ValueError("somebody closed it")  # FIRES


toldness = "a word that only begins like one of them"
