"""What can go wrong, in one sentence each."""


class PenstockError(RuntimeError):
    """Penstock cannot do what was asked; the text says why and what to do."""


class PenstockWarning(UserWarning):
    """Penstock works, but less well than it could."""
