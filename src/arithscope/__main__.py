"""`python -m arithscope` is the command line."""

from arithscope.cli import main

main()
