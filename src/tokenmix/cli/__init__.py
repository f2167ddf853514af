"""The `tokenmix` command. Each command lives in a file of its own in this folder, named after it."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys

import typer

from tokenmix import __version__
from tokenmix.memory import keep_freed_memory

app = typer.Typer(
    name="tokenmix",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Build, train, evaluate and compare models that mix tokens by other means than plain attention.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokenmix {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_version, help="Print the version."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show debug messages and full tracebacks."),
) -> None:
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, format="%(message)s", stream=sys.stderr)
    for chatty in ("httpx", "filelock", "urllib3", "fsspec", "datasets", "matplotlib"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def load_commands() -> None:
    """Import every module of this folder; each registers its command with `@app.command()`."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        importlib.import_module(f"{__name__}.{module.name}")


def main() -> None:
    """Entry point. A mistake of the user is answered in one readable line, a bug with a traceback."""
    try:
        keep_freed_memory()
        load_commands()
        app()
    except (ValueError, OSError) as error:
        if "-v" in sys.argv or "--verbose" in sys.argv:
            raise
        plain = bool(os.environ.get("NO_COLOR"))
        typer.secho(f"error: {error}", fg="red", err=True, color=False if plain else None)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
