"""Writes the reference pages that are made from the code: commands and errors.

``python -m docs.generate`` rewrites them; a test compares them with what this makes.
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

REFERENCE = Path(__file__).resolve().parent / "reference"

COMMANDS_HEAD = """# Commands

Made from the commands themselves by `python -m docs.generate`. Django's own options (`--settings`,
`--verbosity`, …) work everywhere and are left out; where a command has actions they come before the
action: `manage.py belay_cron --settings=shop.settings list`. A command that cannot do what it was asked ends
with a message and a non-zero exit code; one that changes something says what it did and what it
skipped, and why.
"""

ERRORS_HEAD = """# Errors

Made from `django_belay/exceptions.py` by `python -m docs.generate`. Catch the parent to catch its children.
`BelayError` is the parent of every error; `Interrupt` derives from `BaseException`, so that
`except Exception` in a job does not swallow it.
"""


# -- commands ---------------------------------------------------------------------------


def commands_page() -> str:
    """One section a command: what it is for, its arguments, its subcommands."""
    import django_belay.management.commands as package

    names = sorted(
        module.name for module in iter_modules(package.__path__) if module.name.startswith("belay_")
    )
    return "\n".join([COMMANDS_HEAD, *(line for name in names for line in _command(name))])


def _command(name: str) -> Iterator[str]:
    command = import_module(f"django_belay.management.commands.{name}").Command()
    parser = command.create_parser("manage.py", name)
    yield f"## {name}\n"
    yield f"{_sentence(command.help)}\n"
    yield from _arguments(parser, _base_options())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from _subcommands(name, action)


def _subcommands(name: str, action: argparse._SubParsersAction[argparse.ArgumentParser]) -> Iterator[str]:
    helps = {choice.dest: choice.help for choice in action._choices_actions}
    for sub, parser in action.choices.items():
        yield f"### {name} {sub}\n"
        if helps.get(sub):
            yield f"{_sentence(helps[sub] or '')}\n"
        yield from _arguments(parser, _base_options())


def _arguments(parser: argparse.ArgumentParser, hidden: frozenset[str]) -> Iterator[str]:
    rows = [
        f"| {_spelling(action)} | {_sentence(action.help or '').replace('|', chr(92) + '|')} |"
        for action in parser._actions
        if action.dest not in hidden and not isinstance(action, argparse._SubParsersAction)
    ]
    if rows:
        yield "\n".join(["| Argument | |", "|---|---|", *rows, ""])


def _spelling(action: argparse.Action) -> str:
    if action.choices is not None:
        value = " \\| ".join(str(choice) for choice in action.choices)
    else:
        metavar = action.metavar or action.dest.upper()
        value = metavar if isinstance(metavar, str) else " ".join(metavar)
    if not action.option_strings:
        return f"`{value}`"
    names = ", ".join(f"`{option}`" for option in action.option_strings)
    return names if action.nargs == 0 else f"{names} `{value}`".replace("` `", " ")


def _base_options() -> frozenset[str]:
    from django.core.management.base import BaseCommand

    parser = BaseCommand().create_parser("manage.py", "any")
    return frozenset(action.dest for action in parser._actions)


def _sentence(text: str) -> str:
    text = " ".join(str(text).split())
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


# -- errors -----------------------------------------------------------------------------


def errors_page() -> str:
    """The tree as nested lists, each class with the first line of its docstring."""
    from django_belay import exceptions

    lines = [ERRORS_HEAD]
    for root, title in ((exceptions.BelayError, "Errors"), (exceptions.Interrupt, "Interrupts")):
        lines += [f"## {title}\n", *_tree(root, exceptions.__name__, 0), ""]
    return "\n".join(lines)


def _tree(cls: type[BaseException], module: str, depth: int) -> Iterator[str]:
    first_line = (inspect.getdoc(cls) or "").splitlines()[0]
    yield f"{'  ' * depth}* `{cls.__name__}`: {first_line.replace('``', '`')}"
    for child in sorted(cls.__subclasses__(), key=lambda found: found.__name__):
        if child.__module__ == module:
            yield from _tree(child, module, depth + 1)


PAGES = {"commands.md": commands_page, "errors.md": errors_page}


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
