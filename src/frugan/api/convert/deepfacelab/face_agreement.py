"""Whether faces agree with the options that a model goes out with: what does not shows late, in merged pictures."""

from collections.abc import Mapping

from frugan.api.data.sources import Data, open_sources
from frugan.api.progress import Say
from frugan.data.faces.face_type import FaceType
from frugan.data.faces.faceset import Faceset
from frugan.data.faces.needs import FaceNeeds
from frugan.recipe.recipe import Recipe

UNALIGNED = (FaceType.FULL_NO_ALIGN, FaceType.HEAD_NO_ALIGN, FaceType.MARK_ONLY)


def check_agreement(recipe: Recipe, data: Data, trained_on: Mapping[str, str], say: Say) -> None:
    """Refuse faces that the options do not fit, and say what looks like a mistake.

    Args:
        data: as for training.
        trained_on: source -> digest of the faces that the model was last trained on; may be empty.

    Raises:
        BadInput: they cannot be read, or show less of the head than the options say.
    """
    sources = open_sources(recipe, data, say, None)
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    eyebrows: set[float] = set()
    for name, faces in sources.items():
        need = needs[name]
        if not isinstance(faces, Faceset) or not isinstance(need, FaceNeeds):
            continue
        if name in trained_on and trained_on[name] != faces.digest:
            say(f"{name}: these are not the faces that the model was last trained on")
        _say_types(name, faces, FaceType.from_option(need.face_type), say)
        eyebrows |= {face.eyebrows_expand_mod for face in faces.faces}
    if len(eyebrows) > 1:
        found = ", ".join(f"{value:g}" for value in sorted(eyebrows))
        say(
            f"the faces were extracted with several eyebrow settings (eyebrows_expand_mod {found}): masks of one reach "
            "higher than those of the other, and merged foreheads show it; extract both sides with the same setting"
        )


def _say_types(name: str, faces: Faceset, wanted: FaceType, say: Say) -> None:
    total = len(faces.faces)
    if loose := sum(face.face_type in UNALIGNED for face in faces.faces):
        say(f"{name}: {loose:,} of {total:,} faces were extracted without turning them upright; the model expects it")
    other = {face.face_type for face in faces.faces} - {wanted, *UNALIGNED}
    if other:
        count = sum(face.face_type in other for face in faces.faces)
        words = ", ".join(kind.in_files for kind in sorted(other))
        say(f"{name}: {count:,} of {total:,} faces are {words}; the model sees them cut to {wanted.in_files}")
