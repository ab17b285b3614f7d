"""Options that are declared where the façade declares them: a word of one of its functions is an option of the verb of that name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack, cast, get_origin

import typer

from lumos.arguments import REPAIR, Term, declared
from lumos.cli.progress import progress

if TYPE_CHECKING:
    from lumos.trace.table import Job

#: The one word that the command line has in the singular, as each of its values is one.
_SPELLED = {"switches": "--switch"}

#: The general form of the options that are settings of a plan.
Assigned = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any of these settings as KEY=VALUE; repeatable.")]


class ReadWords(TypedDict, total=False):
    """How files are read, as `lumos.read` has it."""

    repair: Annotated[bool, REPAIR]
    engine: Annotated[str, Term("Where files are read: local, or ray (on a cluster that has them at the same paths).")]
    ray_address: Annotated[str, Term("The address of a running Ray cluster.")]


def reading(words: dict[str, Any]) -> ReadWords:
    """Take the words of reading out of those of a verb."""
    return cast("ReadWords", {key: words.pop(key) for key in ReadWords.__annotations__ if key in words})


def read_job(*paths: str, **how: Unpack[ReadWords]) -> Job:
    """The job that the files hold, with the progress on a terminal."""
    from lumos.trace import read

    return read(*paths, progress=progress("reading", "bytes"), **how)


def takes(
    words: type, texts: type | None = None, shown: str | None = None, *, last: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A verb that has an option for each word which its own parameters do not name, and gets those that were given.

    texts: words whose values, as `shown`, the façade parses itself: several of them, a range, a factor. last: whether the options stand
    behind the verb's own.
    """
    as_text = _as_text(texts)

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = {p.name: p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD}
        made = {key: _option(key, *of, shown, as_text=key in as_text) for key, of in declared(words).items() if key not in own}
        said = {key: getattr(p.annotation, "__metadata__", ()) for key, p in own.items()}
        arguments = {key: own[key] for key, told in said.items() if any(type(of).__name__ == "ArgumentInfo" for of in told)}
        bare = inspect.Parameter("word", inspect.Parameter.KEYWORD_ONLY, default=None)
        options = {key: bare.replace(name=key, annotation=option) for key, option in made.items() if option is not None}

        @wraps(command)
        def verb(**given: Any) -> None:
            command(**{key: value for key, value in given.items() if key in own or value is not None})

        every = {**arguments, **own, **options} if last else {**arguments, **options, **own}
        every["json"] = every.pop("json")  # as the last of all verbs
        shown_as = [p.replace(kind=p.KEYWORD_ONLY) for p in every.values()]
        verb.__signature__ = inspect.Signature(shown_as)  # type: ignore[attr-defined]
        verb.__annotations__ = {key: p.annotation for key, p in every.items()}
        return verb

    return with_options


def _option(key: str, kind: Any, meaning: Term, shown: str | None, *, as_text: bool) -> Any:
    """The annotation of an option as typer reads it; None for a word that no command line can say: a function."""
    if get_origin(kind) is Callable or kind is Callable:
        return None
    name = _SPELLED.get(key, f"--{key.replace('_', '-')}")
    if kind is bool:
        spelled = f"{name}/--no-{name[2:]}" if meaning.off else name
        return Annotated[bool | None, typer.Option(spelled, help=meaning.text, show_default=False)]
    if as_text or kind is str:
        metavar = shown if as_text else meaning.shown
        return Annotated[str | None, typer.Option(name, metavar=metavar, help=meaning.text, show_default=False)]
    if kind in (int, float):
        bounds: dict[str, Any] = {"min": meaning.least, "max": meaning.most, "metavar": meaning.shown}
        return Annotated[kind | None, typer.Option(name, help=meaning.text, show_default=False, **bounds)]
    several = f"{meaning.text.removesuffix('.')}; repeatable."
    return Annotated[list[str] | None, typer.Option(name, metavar=meaning.shown, help=several, show_default=False)]


def with_assigned(words: Mapping[str, Any], assigned: Iterable[str] | None, texts: type | None = None) -> dict[str, Any]:
    """The settings of a plan that options and `--set` name. texts: as of `takes`. Raises UsageError for a word that is no setting, and for
    one given twice."""
    from lumos.errors import UsageError
    from lumos.plan.words import switches_of
    from lumos.searching.settings import settings_of

    out = {**words, "switches": switches_of(words.get("switches", ()))}
    for word in assigned or ():
        key, _, value = (part.strip() for part in word.partition("="))
        key = key.replace("-", "_")
        if key in out:
            raise UsageError(f"{key} is given twice, the second time as --set {word}; give it once")
        if key in _as_text(texts):
            out[key] = value
        elif (said := settings_of(word)).switches:
            out["switches"] |= said.switches
        else:
            out[key] = getattr(said, key)
    return out


def _as_text(texts: type | None) -> frozenset[str]:
    return frozenset() if texts is None else frozenset(key for key, (kind, _) in declared(texts).items() if kind is not bool)
