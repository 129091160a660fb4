def half(n):
    assert n % 2 == 0  # FIRES
    return n // 2


check(True, "a sentence that mentions assert is fine")
