"""`flowctl`: find the command, and turn failures into messages and exit codes.

Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import Any

import click

from derive.cli.pipes import discard_unread, discard_unwritable, open_missing
from derive.errors import FlowError, UsageError, suggest

_COMMANDS = {
    "backup": "Back up a data folder while tasks run.",
    "check": "Report the errors of a catalog.",
    "collections": "List, read, truncate and drop collections.",
    "compact": "Merge small files of collections into larger ones.",
    "completion": "Print a script that completes commands in a shell.",
    "compute": "Serve a compute instance, which maintains views.",
    "connector": "List, describe and serve materialize connectors.",
    "diff": "Show what a shadow will change.",
    "discover": "Infer a collection from files.",
    "environment": "Pack this package for the machines of a cluster.",
    "generate": "Write types and stubs for the code of derivations.",
    "graph": "Draw a catalog's data flow.",
    "ingest": "Load documents into a collection.",
    "ingestions": "List and undo loads.",
    "init": "Write a small working catalog to start from.",
    "json-schema": "Print the JSON Schema of flow.yaml, for editors.",
    "materialize": "Plan the changes of materializations to their endpoints.",
    "metadata": "Move the metadata of a data folder to PostgreSQL, and back.",
    "plan": "Show the effect of an edited catalog before it runs.",
    "prepare": "Make Spark start in about half the time.",
    "preview": "Run derivations over some documents, and commit nothing.",
    "quarantine": "List, retry and drop documents that were put aside.",
    "reset": "Start a derivation over.",
    "logs": "Show the logs of tasks and their lambdas.",
    "restore": "Restore a backup into a data folder.",
    "run": "Run derivations.",
    "state": "Query the state of a derivation.",
    "shadow": "Drop a shadow.",
    "split": "Double the shards of a derivation.",
    "sql": "Query collections with SQL, and serve PostgreSQL's clients.",
    "swap": "Let a shadow replace the live derivations.",
    "status": "Show each task's progress, and why it stopped.",
    "test": "Run the catalog's tests.",
    "ui": "Serve web pages that show the catalog and its data, live.",
    "verify": "Find damaged files, and documents unlike their replay.",
    "why": "Explain how a document came to be.",
}

_ELSEWHERE = {
    "help": "--help",
    "list": "collections list",
    "query": "sql",
    "read": "collections read",
    "serve": "sql serve",
    "truncate": "collections truncate",
}
"""Commands and options under other names, which people may try."""

_MODULES = {
    "connector": "materialize",
    "diff": "shadow",
    "ingestions": "ingest",
    "json-schema": "generate",
    "reset": "tasks",
    "restore": "backup",
    "split": "tasks",
    "swap": "shadow",
}
"""Modules of commands that share the module of another command; the other modules have the command's name."""

_COMPLETION = "_FLOWCTL_COMPLETE"
"""The environment variable with which a shell asks for completions; click names it after the program."""

_WORTH_COLLECTING = 500_000
"""Number of new objects before the garbage collector runs."""


class LazyGroup(click.Group):
    """A group that imports a command only when the command is used, so that help is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name."""
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"derive.cli.{_MODULES.get(cmd_name, cmd_name)}")
        name = f"{cmd_name.replace('-', '_')}_command" if cmd_name in _MODULES else "command"
        command: click.Command = getattr(module, name)
        if _COMPLETION in os.environ:
            from derive.cli.completion import complete_names

            complete_names(command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command that the arguments name."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            guess = _ELSEWHERE.get(args[0]) or suggest(args[0], _COMMANDS)
            ctx.fail(f"there is no command '{args[0]}'." + (f" Did you mean '{guess}'?" if guess else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with 0 if the reader of standard output has closed the pipe.

        click itself would count a closed pipe as a failure.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError as exc:
            if not discard_unread():
                raise RuntimeError("a pipe that is neither standard output nor standard error was closed") from exc
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, without imports of their modules."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, is_given: _print_versions(context) if is_given else None,
    help="Show the versions of flowctl and of the programs that it runs, and exit.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="FLOW_LOG_FORMAT",
    help="Format of standard error; json writes one object per line.  [default: text; env FLOW_LOG_FORMAT]",
)
@click.option(
    "--log-level",
    type=click.Choice(["info", "debug"]),
    default="info",
    envvar="FLOW_LOG_LEVEL",
    help="With debug, standard error has a line for each decision: extents, executors, retries, plans of SQL.  "
    "[default: info; env FLOW_LOG_LEVEL]",
)
def flowctl(*, log_format: str, log_level: str, debug: bool) -> None:
    """Keep derived collections of JSON documents correct and up to date.

    \b
    First steps, in an empty folder:
      flowctl init
      flowctl test
      flowctl ingest --collection shop/orders orders.jsonl
      flowctl run --until-idle
      flowctl collections read --collection shop/customers --reduce
    """
    if log_format == "json":
        from derive.cli.console import use_json

        use_json()
    if log_level == "debug":
        from derive.cli.console import log_decisions

        log_decisions()
    if debug:
        os.environ["FLOW_DEBUG"] = "1"


def _print_versions(context: click.Context) -> None:
    """Print the version of this package, and of the programs and libraries that run lambdas, and exit."""
    import platform
    from importlib.metadata import version

    import apsw

    from derive.errors import TaskError
    from derive.spark.session import find_java

    try:
        java = "{1} ({0})".format(*find_java())
    except TaskError as error:
        java = f"missing ({error})"
    versions = {
        "flowctl": version("derive-flow"),
        "Python": platform.python_version(),
        "Spark": version("pyspark"),
        "Java": java,
        "SQLite": apsw.sqlite_lib_version(),
        "Deno": version("deno"),
    }
    click.echo("\n".join(f"{name} {number}" for name, number in versions.items()))
    context.exit()


def _is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _adjust_for_short_commands() -> None:
    """Avoid work of Python and NumPy that a short command does not need."""
    # Garbage collection takes a tenth of a short command's time, and finds no garbage, because the objects that a
    # command loads stay alive.
    gc.set_threshold(_WORTH_COLLECTING, 20, 100)
    # Python collects garbage at its end, too, which takes a tenth of a second after large imports.
    atexit.register(gc.freeze)
    # Threads of NumPy's linear algebra, which no command uses, would wait for work in a loop after the import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _print_usage_error(error: click.ClickException) -> None:
    """Print an error of click, which fits the terminal and has no control characters of arguments."""
    from io import StringIO

    from derive.cli.console import print_usage_error
    from derive.cli.usage_errors import explained

    error = explained(error, sys.argv[1:])
    shown = StringIO()
    error.show(shown)
    print_usage_error(shown.getvalue().rstrip("\n"), error.format_message())


def main() -> None:
    """Run `flowctl`: the entry point of the console script."""
    open_missing()
    _adjust_for_short_commands()
    try:
        # In standalone mode click would print no FlowError; otherwise it returns the code of an `Exit`.
        status = flowctl.main(standalone_mode=False)
    except click.ClickException as exc:
        _print_usage_error(exc)
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except OSError:
        from derive.cli.console import print_error

        failure = discard_unwritable()
        if failure is None:
            raise
        print_error(FlowError(f"standard output cannot be written: {failure.strerror}"))
        sys.exit(1)
    except UnicodeEncodeError:
        from derive.cli.console import print_error

        # Python keeps bytes that are not UTF-8 in arguments as lone surrogates; only paths may have them.
        argument = next((text for text in sys.argv[1:] if not _is_utf8(text)), None)
        if argument is None:
            raise
        print_error(UsageError(f"the argument {argument!a} is not valid UTF-8"))
        sys.exit(2)
    except FlowError as error:
        if os.environ.get("FLOW_DEBUG"):
            raise
        from derive.cli.console import print_error

        print_error(error)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
