"""Entry point of the `zoo` command: registers the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from zoo.errors import ZooError
from zoo.results import one_line

# Command name -> "module:function". The modules are light; what they run is imported inside the functions.
COMMANDS = {
    "list": "zoo.cli.list:list_",
    "card": "zoo.cli.card:card",
    "predict": "zoo.cli.predict:predict",
    "eval": "zoo.cli.eval:eval_",
    "train": "zoo.cli.train:train",
    "finetune": "zoo.cli.finetune:finetune",
    "sweep": "zoo.cli.sweep:sweep",
    "reproduce": "zoo.cli.reproduce:reproduce",
    "convert": "zoo.cli.convert:convert",
    "publish": "zoo.cli.publish:publish",
    "export": "zoo.cli.export:export",
    "viz": "zoo.cli.viz:viz",
    "bench": "zoo.cli.bench:bench",
    "make-canvas": "zoo.cli.make_canvas:make_canvas",
    "make-drive": "zoo.cli.make_drive:make_drive",
    "make-tokens": "zoo.cli.make_tokens:make_tokens",
    "make-shards": "zoo.cli.make_shards:make_shards",
    "snapshot": "zoo.cli.snapshot:snapshot",
    "encodings": "zoo.cli.encodings:encodings",
    "advise": "zoo.cli.advise:advise",
    "doctor": "zoo.cli.doctor:doctor",
    "browse": "zoo.cli.browse:browse",
}

# typer may carry click inside; its own class leads to the base of usage errors wherever that lives.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

EXIT_INTERNAL = 1
EXIT_USER_ERROR = 2


def build_app() -> typer.Typer:
    """Builds the typer application from `COMMANDS`.

    A command module may offer a function or, for commands with sub-commands, a `typer.Typer`.
    """
    app = typer.Typer(
        name="zoo",
        help="pape-zoo: vision models that share one coordinate-aware attention block.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def options(
        debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    ) -> None:
        pass  # Read from sys.argv in main(), since errors can arise before options are parsed.

    for name, target in COMMANDS.items():
        module, attribute = target.split(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 2 wrong input or files that cannot be used, 1 a defect of ours.

    Args:
        argv: Arguments without the program name; `None` takes `sys.argv`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    if debug:  # Accepted anywhere on the line, not only before the command.
        arguments = ["--debug", *[a for a in arguments if a != "--debug"]]
    _open_closed_streams()
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _show_warning
            code = build_app()(arguments, standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except _UsageError as error:
        error.show()  # type: ignore[attr-defined]
        code = EXIT_USER_ERROR
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        code = 130
    except (BrokenPipeError, SystemExit):  # typer exits by itself when the reader of a pipe has gone.
        code = 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        message = one_line(str(error)) or type(error).__name__
        if isinstance(error, (ZooError, OSError)):  # The latter: a full disk, a folder without permission, ...
            print(f"error: {message}", file=sys.stderr)
            code = EXIT_USER_ERROR
        else:
            print(f"error: {type(error).__name__}: {message} (a defect; run again with --debug)", file=sys.stderr)
            code = EXIT_INTERNAL
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """Gives the process streams that it was started without (`>&-`), which Python leaves `None`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (as long as the process)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """One line without the place in our code; names in files of strangers may hold line ends and escape codes."""
    print(f"warning: {one_line(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    main()
