"""Runs the program of this package: python -m dsmoe, and the command dsmoe."""
import os
import subprocess
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dsmoe.exe" if os.name == "nt" else "dsmoe")
    words = [program, *sys.argv[1:]]
    if os.name == "nt":
        sys.exit(subprocess.call(words))
    os.execv(program, words)


if __name__ == "__main__":
    main()
