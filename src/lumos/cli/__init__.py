"""The command line: `lumos VERB …`.

The module of a verb is imported only when the verb is called, so that `lumos --help` and every verb start fast. It defines, by the verb's
name, either a function, whose parameters become arguments and options, or, where the verb has verbs of its own, a `typer.Typer`. To add a
verb, write it and add a line to VERBS.

Exit status: 0 where the verb was done, 1 where the input cannot give an answer (LumosError), 2 for wrong usage, 70 where Lumos itself
failed (`lumos.cli.fault`), 130 where the user interrupted, also where the verb kept and printed what it had, and 128 + its number where
another signal told the verb to end, which is as orderly.
"""

import gc
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lumos.characters import open_closed_streams, show_any_text
from lumos.cli.fitting import say, with_fitting_help
from lumos.errors import INTERRUPTED, InterruptedSearchError, LumosError, Stopped, UsageError

__all__ = ("VERBS", "load", "main", "new_app")


#: The verbs, in the order of the help text, each with what it does. Its module has its name, or is that of HOMES.
VERBS = {
    "inspect": "What is in the traces, what is missing, and what that costs.",
    "diagnose": "What to fix first, and what it is worth.",
    "replay": "Simulate the measured job and compare with the measurement.",
    "breakdown": "Where the time goes.",
    "critical-path": "The chain of tasks that sets the step, and whom the ranks wait for.",
    "stragglers": "What each slow rank, stage and class of operations costs.",
    "compare": "What changed between two jobs or two steps, and what it costs.",
    "whatif": "Change the measured job and predict its step.",
    "predict": "Predict the step of a configuration, without a trace.",
    "validate": "Predict measured runs from tables, and score the predictions.",
    "search": "The plans of a model on a cluster, best first.",
    "explain": "Why one plan beats another.",
    "models": "The models that Lumos knows.",
    "cost": "How long one kernel or collective takes.",
    "calibrate": "Fit the cost models to your measurements or a trace.",
    "clusters": "The clusters that Lumos knows.",
    "chakra": "Read, link, export, check, import and synthesise Chakra traces.",
    "proxy": "A runnable benchmark from a trace.",
    "collect": "Profile a training command.",
    "report": "Write one HTML file that shows a job, offline.",
    "serve": "Explore a job in a browser on this machine, with what-ifs.",
}

#: The modules that several verbs share.
HOMES = {
    **dict.fromkeys(("inspect", "diagnose", "replay", "breakdown", "critical-path", "stragglers", "compare"), "recordings"),
    **dict.fromkeys(("models", "calibrate", "clusters"), "cost"),
    "explain": "search", "report": "whatif", "validate": "predict",
}

#: Objects that are made before Python looks for cycles among them. A verb makes many small values, nearly none of which are in cycles, and
#: with the interpreter's own 700 the search for them took a sixth of the processor time of a prediction.
GARBAGE_AFTER = 100_000

#: The status that a shell gives to a command that SIGPIPE ended.
BROKEN_PIPE = 141

#: The class of click's errors of usage, wherever this version of typer has it from.
_CLICK_ERROR: Any = typer.BadParameter.__base__


class Verbs(TyperGroup):
    """A group of commands that imports a verb's module only when the verb is called."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in VERBS else None

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "" in args[: args.index("--") if "--" in args else None]:
            ctx.fail("an empty argument (a variable of the shell that is not set?); leave it out, or name what was meant")
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in VERBS and not args[0].startswith("-"):
            from lumos.choices import suggestion

            ctx.fail(f"no verb {args[0]!r}{suggestion(args[0], VERBS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        from lumos.cli.progress import SHOWN
        from lumos.stages import watched

        try:
            with watched(SHOWN):
                super().invoke(ctx)
            sys.stdout.flush()
        except LumosError as error:
            SHOWN.leave()
            say(str(error))
            ctx.exit(INTERRUPTED if isinstance(error, InterruptedSearchError) else 2 if isinstance(error, UsageError) else 1)
        except KeyboardInterrupt as told:
            SHOWN.leave()
            say(SHOWN.interrupted())
            ctx.exit(told.status if isinstance(told, Stopped) else INTERRUPTED)
        except _CLICK_ERROR as error:  # an option that there is not, for one
            from lumos.choices import meant

            options = [param.name for param in error.ctx.command.params] if error.ctx else []
            if word := meant(getattr(error, "option_name", ""), options):
                error.possibilities = [f"--{word.replace('_', '-')}"]
            raise
        except BrokenPipeError:
            _leave_standard_output()
            ctx.exit(BROKEN_PIPE)


def _stop(number: int, _frame: object) -> None:
    raise Stopped(number)


def _leave_standard_output() -> None:
    """Keep the interpreter from flushing again at exit, where the reader has closed the pipe or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def load(name: str) -> Any:
    """The command of a verb, from its module."""
    verb = getattr(import_module(f"lumos.cli.{HOMES.get(name, name)}"), name.replace("-", "_"))
    if isinstance(verb, typer.Typer):
        app = verb
    else:
        app = new_app()
        app.command(name)(verb)
    command = typer.main.get_command(app)
    command.name = name
    return with_fitting_help(command)


def new_app(**settings: Any) -> typer.Typer:
    """A Typer with the settings of all verbs: plain help and plain errors."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"lumos {version('lumos-trace')}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Predict how long a distributed training step takes, and why, from profiler traces."""


def main() -> None:
    """The entry point of the `lumos` command. An exception that no verb foresaw is reported as a fault of Lumos."""
    app = typer.Typer(
        cls=Verbs, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True, subcommand_metavar="VERB [ARGS]..."
    )
    app.callback()(_root)
    open_closed_streams()
    show_any_text()
    gc.set_threshold(GARBAGE_AFTER)
    for told in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(told) is signal.SIG_DFL:  # otherwise whoever started the command decided what becomes of the signal
            signal.signal(told, _stop)
    try:
        with_fitting_help(typer.main.get_command(app))(prog_name="lumos")
    except OSError as error:  # verbs turn errors of their files into a LumosError; what remains is a full disk behind stdout
        _leave_standard_output()
        file = error.filename or "standard output"
        say(f"{file}: cannot be written ({error.strerror or error}); free some space or write elsewhere")
        sys.exit(1)
    except MemoryError:
        say("the memory of this machine does not hold the answer; give fewer ranks or a shorter recording")
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  # the one place where what nobody foresaw becomes a report
        from lumos.cli.fault import FAULT, fault_message

        say(fault_message(error))
        sys.exit(FAULT)
