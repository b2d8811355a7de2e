"""Faults of sets: of their parts, and of files that are read in place."""

from deliberate.fault import Fault

FAULTS = (
    Fault(
        "a run whose seed drew its test pictures gets others",
        "setup/run_data_sources.py",
        "by_seed if known is not None and known.held_out_by_seed else HOLDOUT",
        "HOLDOUT",
        "evaluation/test_held_out.py -k whose_seed_drew",
    ),
    Fault(
        "test pictures are trained on",
        "data/parts.py",
        "return replace(pictures.only(np.flatnonzero(~test)), held_out=tested, held_out_below=below)",
        "return replace(pictures, held_out=tested, held_out_below=below)",
        "data/test_parts.py -k held_out",
    ),
    Fault(
        "a subset has classes as the set has them",
        "data/parts.py",
        "turns[by_class] = places if evenly else (places + 0.5)",
        "turns[by_class] = (places + 0.5)",
        "data/test_parts.py -k each_class",
    ),
    Fault(
        "a training with test pictures is scored against its own",
        "training/scores.py",
        "    if pictures.held_out is None:\n",
        "    if True:\n",
        "evaluation/test_held_out.py -k while_training",
    ),
    Fault(
        "of other pictures a part is taken for the test pictures of a run",
        "setup/run_data_sources.py",
        "if fitted.digest != known.digest:",
        "if False:",
        "evaluation/test_held_out.py -k other_pictures",
    ),
    Fault(
        "copies are judged by training pictures where others were held out",
        "metrics/diversity.py",
        "others = real if unseen is None else unseen",
        "others = real",
        "metrics/test_diversity.py -k unseen",
    ),
    Fault(
        "damage to a file that is read in place is not seen",
        "data/in_place.py",
        "about.digest, about.grey, blocks=blocks)",
        "about.digest, about.grey)",
        "data/test_in_place.py -k damage",
    ),
    Fault(
        "packed pictures are read as if they were not",
        "data/formats/archives.py",
        "if file.userblock_size or imgs.id.get_create_plist().get_nfilters():",
        "if file.userblock_size:",
        "data/test_in_place.py -k packed",
    ),
    Fault(
        "labels that leave a class empty are taken",
        "data/formats/picture_set.py",
        "if int(present[-1]) != len(present) - 1:",
        "if False:",
        "test_page_programs.py -k no_pictures",
    ),
)
