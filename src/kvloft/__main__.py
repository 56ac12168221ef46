"""`python -m kvloft`."""

from kvloft.cli import main

main()
