"""`python -m tokenmix`."""

from tokenmix.cli import main

main()
