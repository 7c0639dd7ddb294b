"""`python -m arithscope` is the command line."""

from arithscope.cli.app import main

main()
