"""`python -m varlog.cli` is `varlog`."""

from varlog.cli.main import run

run()
