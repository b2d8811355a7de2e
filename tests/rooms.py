"""Which room of src/frugan may import which: the one table, for the test of arrows and the drawing."""

GROUND = {"errors", "files", "progress", "registry", "torch_internals", "version", "wording"}
"""What stands on nothing else but each other, and everything on it."""

ENGINE = {"engine", "engine/state", "engine/ranks", "engine/step", "engine/run", "accelerator"}
DATA = {"data", "data/formats"}
LAYERS = {"nn", "objectives", "augment", "safe_pickle", "tf_checkpoint"}

ALLOWED: dict[str, set[str]] = {
    "__init__": {
        *("training", "training/own_loop", "planning", "sampling", "evaluation", "conversion", "conversion/export"),
        *("reporting", "setup", "data", "data/formats", "recipe", "engine/state"),
    },
    "__main__": {"cli"},
    # rooms that nothing imports
    "cli": {
        *(
            "page",
            "doctor",
            "training",
            "training/own_loop",
            "planning",
            "sampling",
            "evaluation",
            "conversion",
            "conversion/export",
            "faces/swapping",
        ),
        *("reporting", "setup", "recipe", "recipes", "contract", "faces/data", "faces/masks", *DATA),
    },
    "page": {"training", "sampling", "reporting", "setup", "recipe", "recipes", "contract", *DATA, *ENGINE},
    "doctor": {
        *("training", "planning", "evaluation", "setup", "stepmemory", "recipe", "families", "metrics", "contract"),
        *(*DATA, *ENGINE),
    },
    # a room for a command
    "training": {
        *("planning", "sampling", "evaluation", "reporting", "setup", "stepmemory", "recipe", "recipes", "metrics"),
        *("families", "contract", "nn", "faces/data", *DATA, *ENGINE),
    },
    "training/own_loop": {"planning", "stepmemory", "contract", *ENGINE},
    "conversion": {
        *("conversion/export", "sampling", "reporting", "setup", "recipe", "recipes", "metrics", "contract", "data"),
        *ENGINE,
    },
    "conversion/export": {"sampling", "setup", "recipe", "contract", *ENGINE},
    "evaluation": {"sampling", "setup", "recipe", "metrics", "contract", *DATA, *ENGINE},
    "sampling": {"reporting", "setup", "recipe", "metrics", "contract", *DATA, *ENGINE},
    "planning": {"setup", "stepmemory", "recipe", "families", "contract", *ENGINE},
    "reporting": {"engine/run", "metrics"},
    # what they share
    "setup": {"stepmemory", "recipe", "contract", "nn", *DATA, *ENGINE},
    "recipe": {"recipes", "families", "contract", "engine", "engine/state", "accelerator"},
    "engine/run": {"engine/step", "engine/ranks", "engine/state", "engine", "accelerator", "contract"},
    "engine/step": {"engine/ranks", "engine/state", "engine", "accelerator", "contract"},
    "engine/ranks": {"engine/state", "engine", "accelerator", "contract"},
    "engine/state": {"engine", "accelerator", "contract"},
    "engine": {"accelerator", "contract"},
    # knows torch, and neither generators nor the engine
    "stepmemory": {"accelerator"},
    "accelerator": set(),
    # kinds of model: they meet the engine in `contract` alone
    "families": {"contract", "data", "nn"},
    "families/biggan": {"families", "contract", "data", *LAYERS},
    "families/r3gan": {"families", "contract", "data", *LAYERS},
    "families/stylegan2": {"families", "contract", "data", *LAYERS},
    "families/stylegan3": {"families/stylegan2", "contract", "data", *LAYERS},  # the next generation of the other
    "faces/saehd": {"contract", "faces/data", *LAYERS},
    "faces/quick96": {"contract", "faces/data", "faces/saehd", *LAYERS},
    "faces/amp": {"contract", "faces/data", "faces/saehd", *LAYERS},
    "faces/xseg": {"contract", "faces/data", "faces/saehd", *LAYERS},
    "faces/masks": {"setup", "faces/data", "faces/xseg", *DATA, *ENGINE},  # a command's room
    "faces/swapping": {"sampling", "setup", "faces/data", *ENGINE},  # a command's room
    "faces/data": {"contract", "safe_pickle", *DATA},
    "faces": set(),
    # come in by the entry point `frugan.ops`: nobody imports them
    "kernels": {"kernels/programs", "contract", "nn", "accelerator"},
    "kernels/programs": set(),
    "nn": {"contract"},
    "augment": {"contract"},
    "data": {"data/formats", "contract"},
    "data/formats": set(),
    "contract": set(),
    "metrics": set(),
    "objectives": {"contract"},
    "recipes": set(),
    "safe_pickle": set(),
    "tf_checkpoint": set(),
    **{part: set() for part in GROUND},
}
"""Room, or sub-room with what lies right in it -> those that it may import, besides itself and the ground."""


NOT_DRAWN = GROUND | {"__init__", "__main__"}
