"""``python -m growpage`` is ``growpage``."""

from growpage.cli.app import main

main()
