"""The ``padserve`` command. Wrong configurations end with status 2 and one line."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from padserve import __version__
from padserve.config.keys import MODEL_WIDE, field_names, nearest
from padserve.config.load import load_config
from padserve.config.structs import Config, ServerConfig
from padserve.errors import ConfigError

DESCRIPTION = "One exact, padding-free REST service for the transformers that most products run."


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as the rest of the command does, and not the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options, unknown = make_parser().parse_known_args(arguments)
        refuse_unknown(unknown)
        status: int = options.command(options)
    except ConfigError as error:
        print(f"padserve: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    return status


def make_parser() -> Parser:
    parser = Parser(prog="padserve", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"padserve {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="serve | models | doctor")
    for name, command, text in (
        ("serve", serve, "serve models over HTTP; the starter set when none is given"),
        ("models", models, "list what a configuration would serve, without loading weights"),
        ("doctor", doctor, "say what this machine has, and what each model will use and why"),
    ):
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        add_options(sub)
        sub.set_defaults(command=command)
    return parser


def refuse_unknown(arguments: Sequence[str]) -> None:
    """Errors: `ConfigError` for arguments that no command takes, with the nearest flag."""
    if not arguments:
        return
    flags = ["--model", *(flag_of(key) for key in (*field_names(ServerConfig), *MODEL_WIDE))]
    given = arguments[0].partition("=")[0]
    hint = nearest(given, flags) if given.startswith("-") else "one configuration file at most is read"
    raise ConfigError(f"{given}: unknown argument; {hint}")


def flag_of(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """A flag for each key that flags may set; all values are checked where the file's are."""
    parser.add_argument("config", nargs="?", help="TOML file; PADSERVE_CONFIG when absent")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="TASK=SOURCE",
        help="serve SOURCE (folder, hub id, starter:NAME) for TASK[,TASK], or for all it can do; repeatable",
    )
    for key in field_names(ServerConfig):
        parser.add_argument(flag_of(key), dest=key, metavar="VALUE", help=f"[server] {key}")
    for key in MODEL_WIDE:
        parser.add_argument(flag_of(key), dest=key, metavar="VALUE", help=f"{key} of every model")


def configuration(options: argparse.Namespace) -> Config:
    flags: dict[str, Any] = {key: getattr(options, key) for key in (*field_names(ServerConfig), *MODEL_WIDE)}
    return load_config(options.config, os.environ, flags, options.model)


def serve(options: argparse.Namespace) -> int:
    config = configuration(options)
    from padserve.app import serve as run

    return run(config)


def models(options: argparse.Namespace) -> int:
    config = configuration(options)
    from padserve.cli.report import models_table

    print(models_table(config))
    return 0


def doctor(options: argparse.Namespace) -> int:
    config = configuration(options)
    from padserve.cli.report import doctor_report

    print(doctor_report(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
