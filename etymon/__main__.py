"""`python -m etymon` is the command `etymon`."""

from etymon.cli import main

if __name__ == "__main__":
    main()
