"""``python -m growpage`` is ``growpage``."""

from growpage.cli.app import main

if __name__ == "__main__":
    main()
