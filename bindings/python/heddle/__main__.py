"""`python -m heddle`: the heddle command, where an environment's bin folder is not on the path."""

from heddle._command import main

if __name__ == "__main__":
    main()
