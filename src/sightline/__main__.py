"""`python -m sightline` is the `sightline` command."""

from sightline.cli.main import main

main()
