"""`python -m shoal.cli` is `shoal`."""

from shoal.cli.main import main

main()
