"""The error of a request that no retry can mend."""


class RefusedError(ValueError):
    """What was asked for can be done neither now nor later: a date that is none, a document that is not valid."""
