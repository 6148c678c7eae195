"""`python -m doppler` is `dop`."""

from doppler.cli.main import main

main()
