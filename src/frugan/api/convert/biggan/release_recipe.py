"""The recipe that a BigGAN-PyTorch checkpoint stands for."""

from typing import Any

from frugan.api.convert.biggan.fine_tuning import fine_tuning
from frugan.api.progress import Say
from frugan.errors import BadInput
from frugan.families.biggan.release import STATE, ReleaseCheckpoint
from frugan.families.biggan.release_recipe import network_values, training_values
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe


def release_recipe(checkpoint: ReleaseCheckpoint, *, trains: bool) -> Recipe:
    """Networks and training as in the checkpoint's options.

    Args:
        trains: whether training goes on, so that its options count; else it is fine-tuned by other settings.

    Raises:
        BadInput: an option is missing, or has no counterpart here, by its name.
    """
    options, where = checkpoint.options, str(checkpoint.file(STATE))
    try:
        networks = network_values(options)
        training = training_values(options) if trains else {}
    except BadInput as error:
        hint = "" if not trains else "; weights to draw with or to fine-tune (OUT.safetensors) may still be had"
        raise BadInput(f"{where}: option {error}{hint if _of_training(options) else ''}") from error
    about = {
        "summary": f"{options['model']} at {networks['resolution']} pixels, imported",
        "source": f"checkpoint of BigGAN-PyTorch at iteration {checkpoint.counters['itr']:,}",
    }
    rest = _with_own_rates(training, checkpoint) if trains else fine_tuning()
    return parse_recipe({"family": "biggan", "about": about, "networks": networks, **rest}, where)


def _of_training(options: Any) -> bool:
    """Whether it is the training that is refused, and the networks are not."""
    try:
        network_values(options)
    except BadInput:
        return False
    return True


def _with_own_rates(training: dict[str, Any], checkpoint: ReleaseCheckpoint) -> dict[str, Any]:
    """Adam's settings as the optimizer's file has them, which are those that training goes on with."""
    for name, state in checkpoint.optimizers.items():
        found = state.settings
        betas = found.get("betas")
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise BadInput(f"{checkpoint.file(f'{name}_optim')}: has no betas; expected Adam's state")
        own = {"learning_rate": found.get("lr"), "beta1": betas[0], "beta2": betas[1], "eps": found.get("eps")}
        if not all(type(value) in (int, float) for value in own.values()):
            raise BadInput(f"{checkpoint.file(f'{name}_optim')}: its rate, betas and eps are no numbers")
        if found.get("weight_decay", 0) or found.get("amsgrad", False):
            raise BadInput(f"{checkpoint.file(f'{name}_optim')}: weight_decay and amsgrad have no recipe field")
        training["optimizers"][name] = own
    return training


def say_what_differs(recipe: Recipe, checkpoint: ReleaseCheckpoint, say: Say, *, trains: bool) -> None:
    """Lines for what does not simply go over."""
    options = checkpoint.options
    if not trains:
        return
    if recipe.training.duration.unit == "endless":
        say(f"num_epochs {options.get('num_epochs')}: counts passes over pictures; training.duration is endless here")
    if options.get("parallel") is True:
        say(
            f"parallel: how many cards shared a batch of {options['batch_size']} is not written down, and with it over "
            f"how many samples batches were normalised; training.normalisation_batch={options['batch_size']} is for "
            "one, a quarter of that for four"
        )
    if options.get("split_D") is True:
        say("split_D: real and generated pictures are always judged apart here")
    if options.get("ema") is not True:
        say("ema False: the average is a copy of the generator (ema.decay = 0)")
