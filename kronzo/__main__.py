"""`python -m kronzo`."""

from kronzo.cli import main

main()
