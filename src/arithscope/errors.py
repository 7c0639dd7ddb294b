"""The exception for problems that the user can fix."""


class UserError(Exception):
    """A problem that the user can fix. Its message is one sentence: what is wrong and what to do.

    The command line prints it to stderr and exits with code 2.
    """
