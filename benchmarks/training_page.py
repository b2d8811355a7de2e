"""Writes the tables of the docs' pages on training that `PAGES` names.

    python benchmarks/training_page.py

From what `equal_time.py` and `little_time.py` have recorded; a test holds that they are what the records give.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev

from equal_time import REAL_SCORES, RECIPES, SCORES, Entry
from frugan.metrics.two_sample import Judge
from frugan.recipe.loading import load_recipe
from page_tables import DOCS, fill, read, table
from picture_sets.kinds import KINDS, Kind
from picture_sets.known import PHOTOGRAPHS
from stacked_digits import NAME as STACKED

PAGES = tuple(
    DOCS / f"{page}.md"
    for page in ("training-measured", "training-well", "r3gan", "starting-weights", "starting-weights-measured")
)
AT_32 = ("digits", "handwritten", "shapes", "icons", *KINDS)
NOT_AT_64 = ("tiles", "textures", "charts", "mosaics")
CHOSEN = tuple(of for of in KINDS if of not in NOT_AT_64)

NORMED = {side: f"biggan-small-{side} networks.spectral_norm=true" for side in (32, 64)}
"""As the recipes were until November 28 and 27, 2026."""
HALVED = "biggan-small-64 optimizers.G.learning_rate=5e-4 optimizers.G.final_learning_rate=1.4e-4"
"""With half of the generator's rate."""
WIDE = 0.05
"""Half of the interval of a single `two-sample` (95 %), from which on tables show it."""
JUDGED = ("two_sample", "two_sample_half_width", "two_sample_real", "judge")
"""Of an entry: what depends on the judge."""
USUAL_SECONDS = 150
"""Of a core, in which most changes of a short training were tried."""
LONGER_WEIGHTS = "starter-plus-"
"""Begins the names of weights that went on from those that ship; the steps follow."""
ALONE = {
    32: "biggan-small-32 init=biggan-small-32-D.safetensors",
    64: "biggan-small-64 init=biggan-small-64",
}
"""Side -> recipe whose discriminator alone begins from the weights."""
BOTH = {
    32: "biggan-small-32 init=biggan-small-32",
    64: "biggan-small-64 init=biggan-small-64-both.safetensors",
}
"""Side -> recipe whose networks both begin from them."""
LONGER = (
    *((recipe, "handwritten", 32, 15) for recipe in ("biggan-small-32", NORMED[32])),
    *(
        (recipe, of, 64, 30)
        for of in ("icons", "landscapes", "flags")
        for recipe in ("biggan-small-64", NORMED[64], "r3gan-small-64")
    ),
)
"""Recipe, set, side and minutes of single runs."""


def _all() -> list[Entry]:
    """Entries, by today's judge where their weights were there to be judged again."""
    again = {_run(each): {score: each[score] for score in JUDGED} for each in read("equal-time-again.json")}
    return [each | again.get(_run(each), {}) for each in _as_recorded()]


def _as_recorded() -> list[Entry]:
    entries: list[Entry] = read("equal-time.json") + read("equal-time-three-families.json")
    return entries


def _run(entry: Entry) -> tuple[object, ...]:
    """What tells a run from others; by its recall also from one of the same name on another machine."""
    return tuple(entry[field] for field in ("recipe", "set", "side", "minutes", "seed", "recall"))


def _some(entries: Sequence[Entry], recipe: str, of: str, side: int, minutes: float | None = None) -> list[Entry]:
    """Entries of a recipe on a set, of each seed the first: that which was recorded first."""
    asked = {"recipe": recipe, "set": of, "side": side} | ({} if minutes is None else {"minutes": minutes})
    found = {each["seed"]: each for each in reversed(entries) if asked.items() <= each.items()}
    return [found[seed] for seed in sorted(found)]


def _mean(entries: Sequence[Entry], score: str, digits: int = 2) -> str:
    """With the deviation over the seeds, where there are several; of one, with an interval that is wider than usual."""
    values = [float(entry[score]) for entry in entries]
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    if len(values) == 1 and score == "two_sample" and (width := entries[0]["two_sample_half_width"]) >= WIDE:
        spread = f" (± {width:.{digits}f})"
    return f"{fmean(values):.{digits}f}{spread}"


def _cell(entries: Sequence[Entry], scores: Sequence[str] = SCORES) -> str:
    return "; ".join(_mean(entries, score) for score in scores if entries and score in entries[0])


def _kinds_of(entry: Entry) -> str:
    return f"{entry['classes']} classes" if entry["classes"] > 1 else "no classes"


def three_families(side: int, minutes: float, sets: Sequence[str]) -> str:
    """Sets by families: two-sample; recall; trained on generated, where there are classes."""
    entries = read("equal-time-three-families.json")
    named = [*RECIPES[side], NORMED[side]]
    recipes = [recipe for recipe in named if any(_some(entries, recipe, of, side, minutes) for of in sets)]
    rows = []
    for of in sets:
        by_recipe = [_some(entries, recipe, of, side, minutes) for recipe in recipes]
        first = by_recipe[1][0]
        rows.append([f"{of}, {_kinds_of(first)}", _cell([first], REAL_SCORES), *map(_seeds, by_recipe)])
    return table(["pictures", "real", *(f"`{recipe}`{_at(recipe, side)}" for recipe in recipes)], rows)


def _seeds(entries: Sequence[Entry]) -> str:
    fewer = {1: " (one seed)", 2: " (two seeds)"}
    return _cell(entries) + fewer.get(len(entries), "")


def _at(recipe: str, side: int) -> str:
    return "" if f"-{side}" in recipe else f" at {side}"


def at_32() -> str:
    """Each set in five minutes, by today's judge: of StyleGAN2, which ran before, what needs no judge.

    Of what frugan chooses and of R3GAN every seed, of the others one.
    """
    before, rows = read("equal-time-three-families.json"), []
    today = [entry for entry in _all() if entry.get("judge") == str(Judge())]
    chosen, stylegan2, r3gan = RECIPES[32]
    for of in AT_32:
        own, other = (_some(today, recipe, of, 32, 5) for recipe in (chosen, r3gan))
        third, normed = (_some(today, recipe, of, 32, 5)[:1] for recipe in (stylegan2, NORMED[32]))
        cell = _cell(third) if third else _cell(_some(before, stylegan2, of, 32, 5)[:1], SCORES[1:])
        name = f"{of}, {_kinds_of(own[0])}{_held_out(KINDS[of]) if of in KINDS else ''}"
        others = _cell(other) + " (two seeds)" * (len(other) == 2)
        rows.append([name, _cell(own[:1], REAL_SCORES), _cell(own), others, cell, _cell(normed)])
    return table(["pictures", "real", "BigGAN", "R3GAN", "StyleGAN2", "BigGAN with spectral norm"], rows)


def _held_out(kind: Kind) -> str:
    return " (held out)" * kind.held_out


def chosen() -> str:
    """What frugan chooses at 64 pixels for such pictures on a CPU, and others where they were tried."""
    entries, rows = _all(), []
    for of in CHOSEN:
        judged = [_some(entries, recipe, of, 64, 10)[:1] for recipe in (RECIPES[64][0], HALVED, RECIPES[64][2])]
        first = next(entry for each in judged for entry in each)
        name = f"{of}, {_kinds_of(first)}{_held_out(KINDS[of])}"
        assert all(entry["judge"] == str(Judge()) for each in judged for entry in each), of
        normed = _some(entries, NORMED[64], of, 64)[:1]
        cells = [*map(_cell, judged), _cell(normed, SCORES[1:2]) + _given(normed)]
        rows.append([name, _cell([first], REAL_SCORES), *cells])
    normed_head = "recall of BigGAN with spectral norm"
    return table(["pictures", "real", "BigGAN", "with half the generator's rate", "R3GAN", normed_head], rows)


def _given(entries: Sequence[Entry]) -> str:
    """Minutes of a run, if they are not ten."""
    for entry in entries:
        minutes = "about 6" if "stopped" in entry else f"{entry['minutes']:g}"
        return "" if minutes == "10" else f" ({minutes} minutes)"
    return ""


def minutes() -> str:
    """That 1,000 steps take one core, start and scores included."""
    entries, rows = [*_all(), *read("stacked-digits.json")], []
    for side, recipe in ((side, recipe) for side, recipes in RECIPES.items() for recipe in recipes):
        own = [entry for entry in entries if entry["recipe"] == recipe and entry["side"] == side]
        if not own:
            continue
        per_step = [(entry["machine"]["bf16_units"], entry["cpu_seconds"] / entry["steps"]) for entry in own]
        cells = [_minutes(seconds for has, seconds in per_step if has is units) for units in (True, False)]
        rows.append([f"`{recipe}`{_at(recipe, side)}", str(load_recipe(recipe).training.batch), *cells])
    return table(["recipe", "pictures a step", "with bf16 units", "without"], rows)


def _minutes(step_seconds: Iterable[float]) -> str:
    seconds = sorted(step_seconds)
    if not seconds:
        return ""
    least, most = (f"{each * 1000 / 60:.1f}" for each in (seconds[0], seconds[-1]))
    return least if least == most else f"{least} to {most}"


def singles(runs: Sequence[tuple[str, str, int, int]]) -> str:
    """Single runs."""
    rows = []
    for recipe, of, side, given in runs:
        (entry,) = _some(_as_recorded(), recipe, of, side, given)  # all by the judge as it was
        took = f"{entry['cpu_seconds'] / 60:.0f}"
        real = _cell([entry], REAL_SCORES)
        rows.append([f"{of}, {side} pixels", f"`{recipe}`", took, f"{entry['steps']:,}", real, _cell([entry])])
    return table(["pictures", "recipe", "minutes of the processor", "steps", "real", "generated"], rows)


def at_128() -> str:
    """Single runs, and with spectral norm."""
    entries, rows, plain = _all(), [], "biggan-small-128"
    for of in ("houses", "creatures", "badges"):
        (own,), (normed,) = (
            _some(entries, recipe, of, 128, 20) for recipe in (plain, f"{plain} networks.spectral_norm=true")
        )
        assert {own["judge"], normed["judge"]} == {str(Judge())}, of
        rows.append([f"{of}, {_kinds_of(own)}", _cell([own], REAL_SCORES), _cell([own]), _cell([normed])])
    return table(["pictures", "real", f"`{plain}`", "with spectral norm"], rows)


def few_pictures() -> str:
    """With augmentation and without."""
    entries, rows = _all(), []
    plain = "biggan-small-32"
    for of in ("creatures/300", "badges/300"):
        for recipe in (plain, f"{plain} objective.augmentation.method=diffaugment"):
            (entry,) = _some(entries, recipe, of, 32)
            first = recipe == plain
            classes = "" if "trained_on_generated" not in entry else f"{entry['trained_on_generated']:.3f}"
            name, _, count = of.partition("/")
            rows.append(
                [
                    f"{count} {name}, {_kinds_of(entry)}" if first else "",
                    "as it is" if first else "with DiffAugment",
                    f"{entry['two_sample']:.2f}" + (f" ({entry['two_sample_real']:.2f})" if first else ""),
                    f"{entry['precision']:.2f}, {entry['recall']:.2f}",
                    classes + (f" ({entry['trained_on_real']:.3f})" if first and classes else ""),
                    f"{entry['loss_relativistic']:.2f}",
                ]
            )
    head = ["pictures", f"`{plain}`", "`two-sample` (real)", "precision, recall", "trained on generated (real)", "`D`"]
    return table(head, rows)


def kinds() -> str:
    """Of stacked digits, of 1,000; real ones first."""
    entries, real = read("stacked-digits.json"), read("stacked-digits-real.json")
    scores = [real["divergence"], real["clear"]]
    counted = [f"real ones, {real['counted']:,}", "", "", "", str(real["kinds"])]
    rows = [[*counted, *(f"{score:.2f}" for score in scores)]]
    names = {
        "r3gan-small-32": "`r3gan-small-32`",
        "biggan-small-32": "`biggan-small-32`",
        NORMED[32]: f"`{NORMED[32]}`",
        "stylegan2-small-64": "`stylegan2-small-64` at 32 pixels",
        f"{NORMED[32]} objective.loss=hinge": f"`{NORMED[32]} objective.loss=hinge`",
        "r3gan-small-32 (24,930 steps)": "`r3gan-small-32`, longer",
        "r3gan-small-32 (as of 79dd6916)": "`r3gan-small-32` as it was before November 26, 2026",
    }
    for recipe, name in names.items():
        own = _some(entries, recipe, STACKED, 32)
        minutes = _range(round(entry["cpu_seconds"] / 60) for entry in own if entry["machine"]["bf16_units"])
        scores = [_mean(own, "kinds", 0), *(_mean(own, score) for score in ("divergence", "clear"))]
        rows.append([name, str(len(own)), _range(entry["steps"] for entry in own), minutes, *scores])
    head = ["trained", "seeds", "steps", "minutes in bf16", "kinds of 1,000", "divergence", "clear"]
    return table(head, rows)


def _range(values: Iterable[int]) -> str:
    least, *_, most = sorted([*values] * 2)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def judged_again() -> str:
    """Runs by the judge of `two-sample` as it was, and as it is."""
    rows, before = [], {_run(each): each for each in _as_recorded() if "judge" not in each}
    for entry in read("equal-time-again.json"):
        if was := before.get(_run(entry)):
            cells = [f"{each['two_sample']:.2f} ({each['two_sample_real']:.2f})" for each in (was, entry)]
            rows.append([f"{entry['set']}, {entry['minutes']:g} minutes", *cells])
    return table(["`biggan-small-64` on", "as it was (real)", "as it is"], rows)


def penalties() -> str:
    """Cheaper ones, in equal time."""
    entries = read("penalties-r3gan.json")
    plain = "r3gan-digits-32 networks.channels=3"
    names = {
        plain: "exact, at every step",
        f"{plain} objective.penalty_every=4": "exact, every 4 steps",
        f"{plain} objective.penalty=finite-difference": "finite differences",
    }
    scores = ("two_sample", "trained_on_generated", "recall")
    rows = []
    for recipe, name in names.items():
        digits, shapes = (_some(entries, recipe, of, 32) for of in ("digits", "shapes"))
        rows.append([name, _range(entry["steps"] for entry in digits), _cell(digits, scores), _cell(shapes, scores)])
    return table(["penalties", "steps", "digits", "shapes"], rows)


def starters() -> str:
    """In as many steps from noise, from a discriminator alone, and from both networks."""
    entries, rows = read("starters.json"), []
    with_noise = [*entries, *read("equal-time.json")]
    places = dict.fromkeys((entry["set"], entry["side"], entry["steps"]) for entry in entries)
    for of, side, steps in places:
        recipe = RECIPES[side][0]
        noise, alone, both = (
            _some([entry for entry in among if entry["steps"] == steps], name, of, side)
            for among, name in ((with_noise, recipe), (entries, ALONE[side]), (entries, BOTH[side]))
        )
        (first, *_), chosen_on = noise or alone or both, of != PHOTOGRAPHS and not (of in KINDS and KINDS[of].held_out)
        name = f"{of}, {side} pixels, {_kinds_of(first)}{' (settings were chosen on it)' if chosen_on else ''}"
        rows.append([name, f"{steps:,}", _cell([first], REAL_SCORES), _cell(noise), _cell(alone), _cell(both)])
    return table(["pictures", "steps", "real", "from noise", "discriminator from the weights", "both from them"], rows)


def little_time() -> str:
    """Changes of a short training from the weights that ship, and what each came to in equal time, by seed."""
    by_name: dict[str, list[Entry]] = {}
    for entry in read("little-time.json"):
        by_name.setdefault(_variant(entry), []).append(entry)
    rows = [
        [name, f"{entries[0]['steps']:,}"]
        + [", ".join(f"{entry[score]:.2f}" for entry in entries) for score in ("two_sample", "sharp", "recall")]
        for name, entries in by_name.items()
    ]
    return table(["training", "steps", "two-sample", "against all", "recall"], rows)


def _variant(entry: Entry) -> str:
    """Its name, with pictures, seconds and weights where they are not icons, 150 and those that ship."""
    more = entry["start"].removeprefix(LONGER_WEIGHTS)
    others = (
        (entry["set"] != "icons", entry["set"]),
        (entry["seconds"] != USUAL_SECONDS, f"{entry['seconds']:g} seconds"),
        (more != entry["start"], f"weights of {more} steps more"),
    )
    return "; ".join([entry["variant"], *(words for differs, words in others if differs)])


TABLES: Mapping[str, Callable[[], str]] = {
    "three families": partial(three_families, 32, 5, ("digits", "handwritten", "shapes", "icons")),
    "at 32": at_32,
    "three families at 64": partial(three_families, 64, 15, ("icons", "shapes")),
    "chosen": chosen,
    "minutes": minutes,
    "longer": partial(singles, LONGER),
    "at 128": at_128,
    "few pictures": few_pictures,
    "judged again": judged_again,
    "kinds": kinds,
    "penalties": penalties,
    "starters": starters,
    "little time": little_time,
}


def main() -> None:
    """Write the pages."""
    fill(PAGES, TABLES)


if __name__ == "__main__":
    main()
