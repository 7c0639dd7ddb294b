"""The one exception that stands for a mistake of the user's, not of the program's."""


class UserError(Exception):
    """Something the user can mend. Its text is one sentence: what is wrong and what to do.

    The command line prints it on stderr and exits with code 2; a library user catches it like any exception.
    """
