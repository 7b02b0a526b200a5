"""`flowctl`: finds the command, and turns failures into messages and exit codes.

Exit codes: 0 for success, 1 for a failure, 2 for a command line that makes no sense, 130 when stopped with Ctrl-C.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Any

import click

from derive.cli.pipes import discard_unread
from derive.errors import FlowError, UsageError
from derive.suggest import suggest

_COMMANDS = {
    "backup": "Copy a data folder, as it is at one moment, while all runs.",
    "check": "Find everything that is wrong in a catalog.",
    "collections": "List collections, and read their documents.",
    "compact": "Merge small files of collections into larger ones.",
    "compute": "Keep views up to date in a process of its own.",
    "connector": "List connectors to materialize with, and serve one.",
    "generate": "Write types and stubs for the code of derivations.",
    "graph": "Draw what flows where in a catalog.",
    "ingest": "Load documents into a collection.",
    "init": "Write a small working catalog to begin with.",
    "json-schema": "Print the JSON Schema of flow.yaml, for editors.",
    "materialize": "See what materializations would do to their endpoints.",
    "prepare": "Make Spark start in about half the time.",
    "reset": "Start a derivation over.",
    "logs": "Show what tasks did, and what their lambdas said.",
    "restore": "Make a data folder of a backup.",
    "run": "Run derivations.",
    "split": "Double the shards of a derivation.",
    "sql": "Ask collections in SQL, and serve PostgreSQL's clients.",
    "status": "Show how far each task is, and why it stopped.",
    "test": "Run the catalog's tests.",
    "verify": "Find files that are missing, damaged or unknown.",
}

_WORTH_COLLECTING = 500_000
"""How many more objects there must be before garbage is looked for."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is used, so that help is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"derive.cli.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command that the arguments name."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            guess = suggest(args[0], _COMMANDS)
            ctx.fail(f"there is no command '{args[0]}'." + (f" Did you mean '{guess}'?" if guess else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; one whose reader has closed the pipe ends quietly, and has not failed.

        click itself would count that as a failure.
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
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="derive-flow", prog_name="flowctl")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="FLOW_LOG_FORMAT",
    help="Form of what goes to standard error; as JSON, one object a line.  [default: text; env FLOW_LOG_FORMAT]",
)
def flowctl(*, log_format: str, debug: bool) -> None:
    """Keep derived collections of JSON documents correct and up to date.

    \b
    A first round, with the catalog in ./flow.yaml:
      flowctl test
      flowctl ingest --collection acmeBank/transfers transfers.jsonl
      flowctl run --until-idle
      flowctl collections read --collection acmeBank/balances --reduce
    """
    if log_format == "json":
        from derive.cli.console import use_json

        use_json()
    if debug:
        os.environ["FLOW_DEBUG"] = "1"


def main() -> None:
    """Entry point of the console script."""
    # What a command loads stays; looking for garbage in it takes a tenth of the time of a short one, and finds none.
    gc.set_threshold(_WORTH_COLLECTING, 20, 100)
    try:
        # Left to itself, click would print no FlowError; asked not to exit, it returns the code of an `Exit`.
        status = flowctl.main(standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except FlowError as error:
        if os.environ.get("FLOW_DEBUG"):
            raise
        from derive.cli.console import print_error

        print_error(error)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
