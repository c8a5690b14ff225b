"""`python -m spectra`."""

from spectra.cli import main

main()
