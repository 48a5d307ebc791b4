"""The one kind of error that a person is expected to act on."""


class PartError(RuntimeError):
    """A real part of the tests cannot be had here; the message says why and what to do."""
