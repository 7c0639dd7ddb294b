"""`python -m arithscope` runs the command line."""

from arithscope.cli.app import main

main()
