"""The command line, as `python -m whetstone`."""

from whetstone.cli.main import main

if __name__ == "__main__":
    main()
