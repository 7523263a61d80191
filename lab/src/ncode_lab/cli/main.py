"""Which word was said, and who answers."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from ncode import InputError
from ncode._version import __version__


class Word(NamedTuple):
    """A word of the command line: what it does, and the file of this package that does it."""

    says: str
    module: str

    def answer(self) -> Callable[[list[str]], int]:
        """The function that takes the rest of the line. Imported here, since most words need extras."""
        return import_module(f".{self.module}", __package__).answer


WORDS = {
    "list": Word("experiments, with their presets", "listing"),
    "run": Word("run an experiment: ncode run reflection --quick", "running"),
    "report": Word("write runs up as one HTML page: ncode report runs/*", "reporting"),
    "demo": Word("reflection, annuli and memory in quick form, then the report", "demo"),
    "sweep": Word("run an experiment over a grid of settings", "sweeping"),
    "collect": Word("copy the results of runs to results/, one JSON file a trial", "collecting"),
    "tables": Word("write the results under results/ into the tables of a Markdown file", "tables"),
    "completion": Word("print the completion script of a shell: ncode completion bash", "completion"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    >>> from ncode_lab.cli import main
    >>> main(["list"])  # doctest: +ELLIPSIS
    reflection ...
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print(f"ncode {__version__}")
        return 0
    if words[0] not in WORDS:
        return complain(unknown(words[0]))
    try:
        status = WORDS[words[0]].answer()(words[1:])
        sys.stdout.flush()
        return status
    except InputError as error:
        return complain(str(error))
    except RuntimeError as error:
        from ..training.errors import RunError  # here, since a word that trains nothing does without that room

        if not isinstance(error, RunError):
            raise
        print(f"ncode: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "ncode":
            raise
        return complain(f"`ncode {words[0]}` needs the package {error.name}: pip install 'torch-ncode[experiments]'")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read along has seen enough, as `head` does. What is left must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def usage() -> str:
    """What there is to say."""
    lines = [f"  {name:12}{word.says}" for name, word in WORDS.items()]
    end = "`ncode WORD --help` tells more of each. `ncode --version` prints the version."
    return "\n".join(["usage: ncode WORD ...", "", "Neurally controlled ODEs for PyTorch.", "", *lines, "", end])


def unknown(word: str) -> str:
    """What to say to a word that is none of ours."""
    nearest = difflib.get_close_matches(word, WORDS, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose one of: {', '.join(WORDS)}."
    return f"there is no command {word!r}; {hint}"


def complain(sentence: str) -> int:
    """Print what is wrong, and give the exit status for it."""
    print(f"ncode: {sentence}", file=sys.stderr)
    return 2
