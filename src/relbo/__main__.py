"""`python -m relbo`, the command line where the `relbo` script is not on the path."""

from relbo.lab.cli import main

if __name__ == "__main__":
    main()
