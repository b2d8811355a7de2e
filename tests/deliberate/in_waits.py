"""Faults that let the host wait for a card, or that take one card for another."""

from deliberate.fault import Fault

CONTAINED = "simulated_card/test_training.py -k 'contains'"
NUMBERS = "simulated_card/test_training.py -k 'numbers'"

FAULTS = (
    # what a step may contain, and how the host is kept from waiting
    Fault(
        "two steps' numbers come over into one place",
        "engine/run/step_log.py",
        'host_like(packed, "a step\'s numbers").copy_',
        'globals().setdefault(f"{len(packed)} numbers", host_like(packed, "a step\'s numbers")).copy_',
        NUMBERS,
    ),
    Fault(
        "the host looks whether gradients are to be clipped",
        "engine/state/gradients.py",
        "    factor = torch.where(norm >= largest, largest / norm, 1.0)\n",
        "    if not bool(norm >= largest):\n        return\n    factor = largest / norm\n",
        CONTAINED,
    ),
    Fault(
        "the largest norm is sent while the host waits",
        "engine/state/gradients.py",
        "torch.where(norm >= largest, largest / norm, 1.0)",
        "torch.where(norm >= torch.tensor(largest).to(norm.device), largest / norm, 1.0)",
        CONTAINED,
    ),
    Fault(
        "the share of weights that move is sent while the host waits",
        "engine/state/piecewise_optimizer.py",
        "< round(share * 256)",
        "< torch.tensor(round(share * 256), dtype=torch.uint8).to(device)",
        CONTAINED,
    ),
    Fault(
        "the host looks whether ADA's interval is over",
        "augment/augmentation.py",
        "        updates >= settings.interval,\n",
        "        torch.full_like(updates, bool(updates >= settings.interval), dtype=torch.bool),\n",
        CONTAINED,
    ),
    Fault(
        "the updates after which a loss scale grows are sent while the host waits",
        "engine/state/loss_scale.py",
        "self.good < interval",
        "self.good < torch.tensor(float(interval)).to(self.good.device)",
        CONTAINED,
    ),
    Fault(
        "the host looks whether a loss scale grows",
        "engine/state/loss_scale.py",
        "        self.good.mul_(stays)\n",
        "        if not bool(stays):\n            self.good.zero_()\n",
        CONTAINED,
    ),
    Fault(
        "an average that has not begun waits for the verdict",
        "engine/state/ema.py",
        "            self._follow(name, decay, moved[name], _distinct(self._sources[name]))\n",
        "            if decay or bool(moved[name]):\n"
        "                self._follow(name, decay, moved[name], _distinct(self._sources[name]))\n",
        CONTAINED,
    ),
    Fault(
        "an average's ramp is sent while the host waits",
        "engine/state/ema.py",
        "        decay = self.settings.decay_at(step, batch, course, steps)\n",
        "        decay = self.settings.decay_at(step, batch, course, steps)\n"
        '        if decay and self.settings.schedule == "ramp":\n'
        "            decay = float(torch.tensor(decay).to(next(iter(moved.values())).device))\n",
        CONTAINED,
    ),
    Fault(
        "what makes the host wait for a card is only warned of",
        "accelerator/cuda.py",
        'torch.cuda.set_sync_debug_mode("error")',
        'torch.cuda.set_sync_debug_mode("warn")',
        "engine/test_card_events.py",
    ),
    # what a card is, and which
    Fault(
        "pictures are pinned for the first card",
        "data/batches.py",
        "None if pinning is None else pinning.use)",
        "None)",
        "data/test_prefetch.py",
    ),
    Fault(
        "a run that overflows goes on in bf16 on a card that has none",
        "accelerator/base.py",
        "self.capability is not None and card_has_bf16_units(self.capability)",
        "self.capability is not None",
        "engine/test_precision.py",
    ),
    Fault(
        "another card's verdicts on kernels are taken",
        "training/kernels.py",
        'f"{accelerator_of(device).name}, torch {torch.__version__}',
        'f"torch {torch.__version__}',
        "training/test_kernels.py -k 'verdicts'",
    ),
)
