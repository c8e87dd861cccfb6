"""The ``padserve`` command. Wrong configurations end with status 2 and one line."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from padserve import __version__
from padserve.config.keys import MODEL_WIDE, field_names, nearest
from padserve.config.load import load_config
from padserve.config.structs import Config, ServerConfig
from padserve.errors import ConfigError

DESCRIPTION = "One exact, padding-free REST service for the transformers that most products run."

RUN_KEYS = ("max_body_bytes", "drain_timeout_s", "workers", "threads", "log_level", "log_format")
"""Keys of the server that a run over a file heeds."""
RUN_FLAGS: dict[str, tuple[str | None, str]] = {
    "--input": ("FILE", "rows: JSONL, CSV or Parquet; - for JSONL on standard input"),
    "--output": ("FILE", "JSONL, one line a row, in order; - for standard output"),
    "--format": ("FORMAT", "jsonl, csv or parquet; from the input's name when absent"),
    "--field": ("NAME", "the field or column that holds the input; inputs, else text, when absent"),
    "--id": ("NAME", "a field or column that is passed through to the output"),
    "--options": ("JSON", "fields of every request, such as '{\"top_k\": 3}'; a row's own win"),
    "--batch": ("N", "rows that are put into one request; 32 when absent"),
    "--overwrite": (None, "start anew, and lose what the output holds"),
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as the rest of the command does, and not the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options, unknown = make_parser().parse_known_args(arguments)
        refuse_unknown(unknown, options)
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
    commands = parser.add_subparsers(title="commands", required=True, metavar="serve | run | models | doctor")
    for name, command, text in (
        ("serve", serve, "serve models over HTTP; the starter set when none is given"),
        ("run", run, "run a task over the rows of a file, and go on where an earlier run was broken off"),
        ("models", models, "list what a configuration would serve, without loading weights"),
        ("doctor", doctor, "say what this machine has, and what each model will use and why"),
    ):
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        server_keys = field_names(ServerConfig)
        if command is run:
            add_run_options(sub)
            server_keys = RUN_KEYS
        add_options(sub, server_keys)
        own_flags = list(RUN_FLAGS) if command is run else []
        flags = ["--model", *own_flags, *map(flag_of, (*server_keys, *MODEL_WIDE))]
        sub.set_defaults(command=command, flags=flags)
    return parser


def refuse_unknown(arguments: list[str], options: argparse.Namespace) -> None:
    """Errors: `ConfigError` for arguments that the command does not take, with the nearest flag."""
    if options.config is None and arguments and not arguments[0].startswith("-"):
        options.config = arguments.pop(0)  # argparse gives up on an optional word that comes after flags
    if not arguments:
        return
    flags = options.flags
    given = arguments[0].partition("=")[0]
    hint = nearest(given, flags) if given.startswith("-") else "one configuration file at most is read"
    raise ConfigError(f"{given}: unknown argument; {hint}")


def flag_of(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What to run, on which rows, and where the results go."""
    parser.add_argument("task", metavar="TASK", help="what to do with every row, such as embed: a route of the server")
    for flag, (metavar, text) in RUN_FLAGS.items():
        if metavar is None:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            parser.add_argument(flag, metavar=metavar, required=flag in ("--input", "--output"), help=text)


def add_options(parser: argparse.ArgumentParser, server_keys: Sequence[str]) -> None:
    """A flag for each key that flags may set; all values are checked where the file's are."""
    parser.add_argument("config", nargs="?", help="TOML file; PADSERVE_CONFIG when absent")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="TASK=SOURCE",
        help="use SOURCE (folder, hub id, starter:NAME) for TASK[,TASK], or for all it can do; repeatable",
    )
    for key in server_keys:
        parser.add_argument(flag_of(key), dest=key, metavar="VALUE", help=f"[server] {key}")
    for key in MODEL_WIDE:
        parser.add_argument(flag_of(key), dest=key, metavar="VALUE", help=f"{key} of every model")


def configuration(options: argparse.Namespace, defaults: Mapping[str, str] | None = None) -> Config:
    """``defaults``: environment variables where the environment has none."""
    keys = (*field_names(ServerConfig), *MODEL_WIDE)
    flags: dict[str, Any] = {key: getattr(options, key, None) for key in keys}
    return load_config(options.config, {**(defaults or {}), **os.environ}, flags, options.model)


def serve(options: argparse.Namespace) -> int:
    config = configuration(options)
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries draw bars into the log while they load
    from padserve.app import serve as run

    return run(config)


def run(options: argparse.Namespace) -> int:
    config = configuration(options, {"PADSERVE_LOG_LEVEL": "warning", "PADSERVE_LOG_FORMAT": "text"})
    from padserve.cli.run import run as run_file

    return run_file(options, config)


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
