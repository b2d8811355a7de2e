"""The face model that goes to another program, and whether faces agree with its options: what does not shows late."""

from frugan.contract.formats import Conversion, OurSide, Say, Trained
from frugan.data.faces.face import FaceType
from frugan.data.faces.faceset import Faceset
from frugan.errors import BadInput
from frugan.families.saehd.family import SAEHDFamily

UNALIGNED = (FaceType.FULL_NO_ALIGN, FaceType.HEAD_NO_ALIGN, FaceType.MARK_ONLY)


def open_faces(asked: Conversion, ours: OurSide) -> Trained:
    """Open a run or one of its checkpoints.

    Raises:
        BadInput: it is none, damaged, or of another family.
    """
    trained, own = ours.checkpoint(), SAEHDFamily.name
    if (family := trained.recipe.values["family"]) != own:
        raise BadInput(f"{asked.source}: a {family} model; DeepFaceLab and DeepFaceLive take {own} only")
    return trained


def check_agreement(trained: Trained, ours: OurSide, say: Say) -> None:
    """Refuse faces that the options do not fit, and say what looks like a mistake.

    Raises:
        BadInput: they cannot be read, or show less of the head than the options say.
    """
    needs = SAEHDFamily().sources(trained.recipe.networks, trained.recipe.objective)
    eyebrows: set[float] = set()
    for name, faces in ours.data(trained).items():
        if not isinstance(faces, Faceset):
            continue
        if name in trained.trained_on and trained.trained_on[name] != faces.digest:
            say(f"{name}: these are not the faces that the model was last trained on")
        _say_types(name, faces, FaceType.from_option(needs[name].face_type), say)
        eyebrows |= {face.eyebrows_expand_mod for face in faces.faces}
    if len(eyebrows) > 1:
        modes = ", ".join(f"{value:g}" for value in sorted(eyebrows))
        say(
            f"the faces were extracted with several eyebrow settings (eyebrows_expand_mod {modes}): masks of one reach "
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
