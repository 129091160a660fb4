"""``python -m holdfast`` is the ``holdfast`` command."""

from holdfast.cli.main import main

if __name__ == "__main__":
    main()
