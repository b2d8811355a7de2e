"""Tests that train draw small grids, and may have networks as narrow as the recordings'; commands are called here."""

from cli.calling import frugan
from conversion.leras_models import narrow_faces
from faces.face_runs import no_previews, previews
from training.small_grids import small_grids

__all__ = ["frugan", "narrow_faces", "no_previews", "previews", "small_grids"]
