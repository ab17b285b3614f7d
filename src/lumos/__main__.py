"""`python -m lumos` is the command `lumos`."""

from lumos.cli import main

if __name__ == "__main__":
    main()
