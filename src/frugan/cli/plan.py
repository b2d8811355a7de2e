"""The `frugan plan` command."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from frugan.cli.options import AsJson, ForTime, Overrides, RecipeOrNone, recipe_and_fields
from frugan.cli.output import Bar, named_paths, print_json
from frugan.errors import BadInput
from frugan.wording import nearest

if TYPE_CHECKING:
    from frugan.planning.plan_report import PlanReport
    from frugan.recipe.recipe import Recipe
    from frugan.recipe.relatives import Largest
    from frugan.training.choice import RecipeChoice

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
LARGEST = ("resolution", "batch", "width")


def plan(
    recipe: RecipeOrNone = None,
    overrides: Overrides = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="[NAME=]PATH", help="pictures: without RECIPE to choose one for, with it to look at"),
    ] = None,
    for_time: ForTime = None,
    init: Annotated[
        str | None, typer.Option(help="without RECIPE: weights file, checkpoint or run to start from")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="how much card memory to use in all, such as 6GiB")] = None,
    card: Annotated[
        str | None,
        typer.Option(
            help="plan for this card, such as rtx-3060, or for several: gtx-1080x8; without --memory: with all that "
            "its driver leaves"
        ),
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(help="samples per forward pass; default: chosen for you")] = None,
    use: Annotated[list[str] | None, typer.Option(help="use this memory saving; may be repeated")] = None,
    avoid: Annotated[list[str] | None, typer.Option(help="never use this memory saving; may be repeated")] = None,
    biggest: Annotated[
        str | None,
        typer.Option("--largest", help="resolution, batch or width: find the largest that fits --memory or --card"),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="number of cards that share each batch under torchrun (docs/cluster.md)")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help="bandwidth between the cards, with latency if you know it: 8GB/s, 25Gbit/s or 8GB/s,50us"),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="first measure this machine's card or CPU, in about ten seconds")
    ] = False,
    price_per_hour: Annotated[
        float | None, typer.Option(help="price of one card per hour: says what the training will cost")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a recipe fits a card, and how: micro-batch, memory savings, peak memory, extra time.

    Needs no card: it runs the training step itself on tensors without data. Without --memory or --card it lists every
    plan worth having, from the fastest to the smallest.

    Memory savings: keep-products, recompute, offload, dense-slices, ema-on-host, optimizer-on-host; with --gpus also
    shard-optimizer. None of them changes the result.

    Example: frugan plan saehd-df-ud-512 --card rtx-2060

    A model of your own, which setup() returns with its loss, a batch and its optimizer (docs/your-own-loop.md):
    frugan plan my_project.train:setup --card rtx-3060

    What frugan would choose for pictures: frugan plan --data pictures/ --for 2h --card rtx-3060
    """
    from frugan.planning.plan_recipe import PlanOptions, check_price, largest, options_of_choice
    from frugan.planning.plan_recipe import plan as make_plan
    from frugan.recipe.loading import overrides_in_words

    recipe, fields = recipe_and_fields(recipe, overrides)
    of_choice = {"--data": data, "--for": for_time, "--init": init}
    of_cards: dict[str, Any] = {
        **{"--memory": memory, "--gpus": gpus, "--link": link, "--largest": biggest, "--micro-batch": micro_batch},
        **{"--price-per-hour": price_per_hour, "--use": use, "--avoid": avoid, "--calibrate": calibrate or None},
    }
    if recipe is not None and _names_function(recipe):
        of_recipes = {**of_choice, **of_cards, "--memory": None, "--micro-batch": None, "fields": fields or None}
        _plan_function(recipe, memory, card, micro_batch, of_recipes, as_json=as_json)
        return
    chosen = None
    planned: str | Recipe
    if recipe is None:
        alone = data is not None and card is None and _no_card(of_cards)
        machine = {"card": card, "memory": memory, "gpus": gpus, "link": link}
        chosen = _choose(data, for_time, fields, init, machine)
        planned, fields = chosen.recipe, [*chosen.overrides, *fields]
        if _print_choice(chosen, alone, as_json=as_json):
            return
    else:
        _refuse_beside_recipe(recipe, {**of_choice, "--data": None})
        planned = recipe
        if data is not None:
            _look_at(recipe, fields, data, quiet=as_json)
    with _Counting(quiet=as_json) as counting:
        for line in overrides_in_words(planned, fields) if isinstance(planned, str) else ():
            counting.say(line)
        options = PlanOptions(
            card, micro_batch, use or (), avoid or (), gpus, link, calibrate, tell=counting, say=counting.say
        )
        options, lines = (options, ()) if chosen is None else options_of_choice(planned, fields, options)
        if price_per_hour is not None:
            check_price(price_per_hour, options)
        if biggest is None:
            report = make_plan(planned, memory, fields, options)
        else:
            _check_largest(biggest, memory, card)
            _, report = largest(planned, cast("Largest", biggest), memory, fields, options)
        report = replace(report, decisions=(*lines, *report.decisions))
    _print_report(report, price_per_hour, chosen, as_json=as_json)


def _names_function(text: str) -> bool:
    """Return whether a text is "module:function", and no path that exists."""
    return _FUNCTION.fullmatch(text) is not None and not Path(text).exists()


def _plan_function(
    name: str, memory: str | None, card: str | None, micro_batch: int | None, others: dict[str, Any], *, as_json: bool
) -> None:
    """Plan the step that a function of somebody's own sets up, and print that.

    Args:
        others: options that only recipes have a use for; None: not set.

    Raises:
        BadInput: one of them is set.
    """
    from frugan.training.own_loop.setup_function import plan_function

    for option, value in others.items():
        if value is not None:
            raise BadInput(
                f"{option} {value}: for recipes; beside {name} go --memory, --card, --micro-batch and --json"
            )
    report = plan_function(name, memory, card=card, micro_batch=micro_batch)
    if as_json:
        print_json(report.as_json())
    else:
        print(report)


def _check_largest(biggest: str, memory: str | None, card: str | None) -> None:
    """Refuse what cannot be the largest, and a size of memory that is not said.

    Raises:
        BadInput: it is such a request.
    """
    if biggest not in LARGEST or (memory is None and card is None):
        near = nearest(biggest, LARGEST) if biggest not in LARGEST else ""
        raise BadInput(
            f"--largest {biggest}: expected {', '.join(LARGEST)}{near}, together with --memory or --card, such as "
            "--largest batch --memory 12GiB"
        )


def _print_report(
    report: "PlanReport", price_per_hour: float | None, chosen: "RecipeChoice | None", *, as_json: bool
) -> None:
    if as_json:
        price = report.price(price_per_hour) if price_per_hour is not None else None
        words = None if report.largest is None else list(report.largest[1])
        choice = {} if chosen is None else {"chosen": _as_json(chosen)}
        print_json(report.as_json() | {"largest": words, "price": price} | choice)
        return
    console = Console(highlight=False, width=max(Console().width, 100))
    from frugan.planning.plan_text import report_blocks

    for block in report_blocks(report, price_per_hour):
        console.print(block, markup=False, crop=False)


def _refuse_beside_recipe(recipe: str, options: dict[str, str | None]) -> None:
    """Refuse options that only the choice of a recipe uses.

    Raises:
        BadInput: one of them is set.
    """
    for option, value in options.items():
        if value is not None:
            raise BadInput(f"{option} {value}: goes without a recipe, where one is chosen; leave out {recipe}, or this")


def _look_at(recipe: str, fields: list[str], data: str, *, quiet: bool) -> None:
    """Print what is found of pictures for a recipe, or refuse those that do not go with it."""
    from frugan.recipe.loading import load_recipe
    from frugan.training.picture_lines import lines_beside

    named = named_paths([data])
    loaded = load_recipe(recipe, fields)
    ((name, path),) = named.items() if isinstance(named, dict) else [("", named)]
    if name not in ("", *loaded.sources):
        raise BadInput(f"--data {data}: this recipe takes {' and '.join(loaded.sources)}, not {name}")
    with Bar("reading headers") as bar:
        lines = lines_beside(loaded, path, bar)
    for line in () if quiet else lines:
        print(line)


def _no_card(card_options: dict[str, Any]) -> bool:
    """Return whether this machine has no card, so that the recipe is chosen for its processor.

    Args:
        card_options: options that only a card has a use for; None: it was not set.

    Raises:
        BadInput: it has none, and there are such options.
    """
    from frugan.setup.devices import choose_device

    none = choose_device()[0].type == "cpu"
    set_options = {name: value for name, value in card_options.items() if value is not None}
    if none and set_options:
        name, value = next(iter(set_options.items()))
        words = "" if value is True else f" {' '.join(value) if isinstance(value, list) else value}"
        raise BadInput(f"{name}{words}: for a card, and none is here; say which one to choose for: --card rtx-3060")
    return none


def _choose(
    data: str | None, for_time: str | None, fields: list[str], init: str | None, machine: dict[str, Any]
) -> "RecipeChoice":
    """Choose a recipe for pictures, with a progress bar while their headers are read."""
    from frugan.training.choice import choose_for
    from frugan.training.starting_weights import FROM_NOISE, recipe_to_start_from

    machine = {**machine, "start": recipe_to_start_from(init), "from_noise": init == FROM_NOISE}
    with Bar("reading headers") as bar:
        named = None if data is None else named_paths([data])
        return choose_for(named, for_time=for_time, overrides=fields, progress=bar, **machine)


def _print_choice(choice: "RecipeChoice", alone: bool, *, as_json: bool) -> bool:
    """Print the choice, and return whether there is nothing left to print.

    Args:
        alone: there is no card to fit anything on.
    """
    if not as_json:
        for line in (*choice.left_out, *choice.lines):
            print(line)
    elif alone:
        print_json({"chosen": _as_json(choice)})
    return alone


def _as_json(choice: "RecipeChoice") -> dict[str, Any]:
    """Return the choice as JSON: a built-in recipe by name, that of starting weights in full."""
    recipe = choice.recipe if isinstance(choice.recipe, str) else choice.recipe.model_dump(mode="json")
    return asdict(choice) | {"recipe": recipe}


class _Counting:
    """A transient line on stderr that counts the steps run without data."""

    def __init__(self, *, quiet: bool) -> None:
        self._status = None if quiet else Console(stderr=True).status("running the step on tensors without data")

    def __call__(self, ran: int) -> None:
        if self._status is not None:
            if ran == 1:
                self._status.start()
            self._status.update(f"running the step on tensors without data: plan {ran}")

    def say(self, line: str) -> None:
        """Print a line above the transient one."""
        if self._status is not None:
            self._status.console.print(line, markup=False, highlight=False, soft_wrap=True, style="dim")

    def __enter__(self) -> "_Counting":
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
