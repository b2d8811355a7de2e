"""The `frugan prepare` command."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from frugan.cli.options import options
from frugan.cli.output import Bar, say
from frugan.errors import BadInput
from frugan.progress import FACES, SIDE_PIXELS
from frugan.wording import shown

if TYPE_CHECKING:
    from frugan.contract.settings import AllowUpscale
    from frugan.data.survey import Fitting


Form = Literal["set", "zip", "hdf5", "webdataset"]
"""What pictures are written as."""
SUFFIXES: dict[str, Form] = {".zip": "zip", ".hdf5": "hdf5", ".h5": "hdf5"}
OF_PICTURES = ("resample", "allow_upscale", "leave_out_small", "fit", "background", "range", "workers", "form")
"""Parameters that say how pictures, not faces, are prepared."""
METADATA = ".metadata"
"""Ends the name of a file with the metadata of faces."""
DRAWN = "drawn-faces"
"""The SOURCE that is no path."""


@dataclass(frozen=True)
class PrepareOptions:
    """Arguments and options of `frugan prepare`."""

    context: typer.Context
    source: Annotated[
        str,
        typer.Argument(
            help="folder of pictures, NVlabs zip, HDF5 file, tar files, CIFAR binary folder; "
            f"folder of aligned faces; faceset.pak; or {DRAWN}: faces of two imaginary people, which come with frugan"
        ),
    ]
    out: Annotated[
        Path,
        typer.Argument(
            help="what to write: a folder; a .zip for NVlabs' programs; a .hdf5 for BigGAN-PyTorch; a .pak for faces; "
            "an .npz with --reference"
        ),
    ]
    resolution: Annotated[int | None, typer.Option(help="side of the square pictures, in pixels")] = None
    resample: Annotated[str, typer.Option(help="bilinear (as BigGAN's authors) or lanczos (sharper)")] = "bilinear"
    allow_upscale: Annotated[bool, typer.Option(help="enlarge pictures that are smaller than the resolution")] = False
    leave_out_small: Annotated[
        bool,
        typer.Option(help="leave out pictures that are smaller than the resolution, also more than a tenth of all"),
    ] = False
    fit: Annotated[
        Literal["crop", "pad"],
        typer.Option(help="pictures that are not square: crop them, or pad them with the background"),
    ] = "crop"
    background: Annotated[
        str, typer.Option(help="colour to put behind transparent pictures and beside padded ones: a name, or #rrggbb")
    ] = "white"
    range: Annotated[
        float | None,
        typer.Option(help="value that is white in grey pictures of more than 8 bits, such as 4095"),
    ] = None
    workers: Annotated[int, typer.Option(help="number of decoding threads", min=1)] = 2
    form: Annotated[
        Form | None,
        typer.Option("--format", help="format of OUT; default: by its name; webdataset: a folder of tar files"),
    ] = None
    faces: Annotated[
        int | None,
        typer.Option(help=f"with {DRAWN}: faces of each of the two people; default: all {FACES}"),
    ] = None
    reference: Annotated[
        bool,
        typer.Option("--reference", help="write only the mean and covariance of features, for `evaluate --reference`"),
    ] = False
    network: Annotated[
        str | None,
        typer.Option(help="with --reference: feature network, as for `evaluate`; default: inception"),
    ] = None
    network_file: Annotated[Path | None, typer.Option(help="with --reference: weights of that network")] = None
    device: Annotated[str | None, typer.Option(help="with --reference: auto (default), cpu, cuda or cuda:N")] = None


@options(PrepareOptions)
def prepare(**values: Any) -> None:
    """Crop and resize pictures once, into a training set, zip, tars or HDF5; or pack faces into a faceset.pak.

    Example: frugan prepare holiday-pictures/ prepared/holiday --resolution 128

    For another machine: frugan prepare holiday-pictures/ shards --resolution 256 --format webdataset (tar files)

    For StyleGAN's programs: frugan prepare holiday-pictures/ holiday.zip --resolution 256 --resample lanczos

    Faces: frugan prepare workspace/data_src/aligned packed/faceset.pak (a file that DeepFaceLab reads too)

    Back to loose files: frugan prepare packed/faceset.pak aligned

    Their metadata, before other programs edit the pictures: frugan prepare aligned faces.metadata (and back again)

    For scores: frugan prepare prepared/holiday holiday-128.npz --reference (mean and covariance of features)

    Drawn faces: frugan prepare drawn-faces workspace (a workspace like DeepFaceLab's, of two imaginary people)
    """
    arguments = PrepareOptions(**values)
    from frugan.data.formats.source import local_path

    for option, value in {
        "--network": arguments.network,
        "--network-file": arguments.network_file,
        "--device": arguments.device,
    }.items():
        if value is not None and not arguments.reference:
            raise BadInput(f"{option} {value}: only goes with --reference; leave it out")
    if arguments.out.suffix == ".npz" and not arguments.reference:
        raise BadInput(
            f"{arguments.out}: an .npz file is for the mean and covariance of features; add --reference if you want "
            "those"
        )
    if arguments.resample not in ("bilinear", "lanczos"):
        raise typer.BadParameter("expected bilinear or lanczos", param_hint="--resample")
    if arguments.reference:
        _write_reference(arguments)
    elif arguments.source == DRAWN:
        _write_drawn(arguments)
    elif arguments.faces is not None:
        raise BadInput(f"--faces {arguments.faces}: only goes with {DRAWN}; leave it out")
    elif arguments.out.suffix == ".pak":
        _pack_faces(arguments, local_path(arguments.source))
    else:
        from frugan.faces.data.faceset import holds_pak

        source = local_path(arguments.source)
        if METADATA in (source.suffix, arguments.out.suffix):
            _move_metadata(arguments, source)
        else:
            (_unpack_faces if holds_pak(source) else _prepare_pictures)(arguments, source)


def _prepare_pictures(arguments: PrepareOptions, source: Path) -> None:
    """Bring pictures to one size, as a training set or in the form of another program.

    Raises:
        BadInput: there is no resolution, or no such colour.
    """
    from frugan.data.formats.decoding import background
    from frugan.data.survey import Fitting, Resample

    if arguments.resolution is None:
        raise BadInput("--resolution is missing: the side of the square pictures in pixels, such as --resolution 128")
    resample: Resample = "lanczos" if arguments.resample == "lanczos" else "bilinear"
    fitting = Fitting(
        arguments.resolution,
        resample,
        _allow_upscale(arguments),
        background(arguments.background),
        arguments.fit,
        arguments.range,
    )
    form = arguments.form or SUFFIXES.get(arguments.out.suffix.lower(), "set")
    if form == "set":
        _write_set(source, arguments.out, fitting, arguments.workers)
    else:
        _pack_pictures(source, arguments.out, form, fitting, arguments.workers)


def _allow_upscale(arguments: PrepareOptions) -> "AllowUpscale":
    """Return what becomes of pictures that are too small.

    Raises:
        BadInput: two answers were given.
    """
    if arguments.allow_upscale and arguments.leave_out_small:
        raise BadInput("--allow-upscale with --leave-out-small: pictures that are too small are one or the other")
    return "leave-out" if arguments.leave_out_small else arguments.allow_upscale


def _write_set(source: Path, out: Path, fitting: "Fitting", workers: int) -> None:
    """Write pictures as a training set."""
    from frugan.data.prepare import prepare as prepare_set
    from frugan.setup.small_pictures import small_for_preparing

    small = small_for_preparing(source, out, fitting.resolution, fitting.resample)
    with Bar("reading headers") as look, Bar("preparing") as move, small:
        report = prepare_set(
            source,
            out,
            resolution=fitting.resolution,
            resample=fitting.resample,
            allow_upscale=fitting.allow_upscale,
            background=fitting.background,
            fit=fitting.fit,
            range=fitting.range,
            workers=workers,
            progress=move,
            survey_progress=look,
        )
    for line in report.lines:
        say(line)
    classes = f"{len(report.class_names)} classes" if report.labelled else "no classes"
    print(f"{report.pictures:,} pictures of {fitting.resolution} pixels, {classes}: {shown(str(report.path))}")
    channels = " networks.channels=1" if report.grey == report.pictures else ""
    print(
        f"Next: frugan train RECIPE{channels} --data {shlex.quote(shown(str(report.path)))} --out RUN "
        f"(`frugan recipes`: those for {fitting.resolution} pixels)"
    )


def _refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Refuse options that were typed and would be ignored.

    Args:
        names: of this command's parameters.
        why: continues "--option ...".

    Raises:
        BadInput: one of them was typed.
    """
    for parameter in context.command.params:
        given_by = context.get_parameter_source(str(parameter.name))
        if parameter.name in names and given_by is not None and given_by.name == "COMMANDLINE":
            raise BadInput(f"{parameter.opts[0]} {why}; leave it out")


def _write_reference(arguments: PrepareOptions) -> None:
    """Write the feature moments of pictures, resized as in a recipe's `data` section.

    Raises:
        BadInput: they are faces, or an option has no effect.
    """
    from frugan.contract.settings import DataSettings
    from frugan.evaluation.reference_file import write_reference

    if arguments.source == DRAWN or arguments.faces is not None:
        raise BadInput("--reference: there are no such scores for faces; leave it out")
    _refuse(arguments.context, ("form", "workers"), "has no effect with --reference")
    names = ("resample", "fit", "background", "range")
    how = {name: getattr(arguments, name) for name in names} | {"allow_upscale": _allow_upscale(arguments)}
    out, network = arguments.out, arguments.network or "inception"
    with Bar("pictures") as bar:
        count = write_reference(
            arguments.source,
            out,
            resolution=arguments.resolution,
            data=DataSettings.model_validate(how),
            network=network,
            network_file=arguments.network_file,
            device=arguments.device or "auto",
            say=say,
            progress=bar,
        )
    print(f"Mean and covariance of the features of {count:,} pictures: {out}")
    with_it = "" if network == "inception" else f" --network {network}"
    print(f"Next: frugan evaluate RUN --reference {shlex.quote(str(out))}{with_it} --metrics fid")


def _pack_pictures(source: Path, out: Path, form: Form, fitting: "Fitting", workers: int) -> None:
    """Write pictures in the form of another program."""
    from frugan.data.export import Hdf5, NvlabsZip, Packing, Shards, pack_pictures
    from frugan.setup.small_pictures import small_for_preparing

    packings: dict[Form, Packing[Any]] = {"zip": NvlabsZip(), "hdf5": Hdf5(), "webdataset": Shards()}
    small = small_for_preparing(source, out, fitting.resolution, fitting.resample)
    with Bar("reading headers") as look, Bar("packing") as move, small:
        count, lines = pack_pictures(
            source, out, packings[form], fitting, workers=workers, progress=move, survey_progress=look
        )
    for line in lines:
        say(line)
    print(f"{count:,} pictures of {fitting.resolution} pixels: {out}")
    print(
        f"Next: frugan train RECIPE --data {shlex.quote(str(out))} --out RUN "
        f"(`frugan recipes`: those for {fitting.resolution} pixels)"
    )


def _write_drawn(arguments: PrepareOptions) -> None:
    """Write the two people who were drawn.

    Raises:
        BadInput: a file is asked for, or another resolution than they have, or an option has no effect.
    """
    from frugan.faces.data.drawn_faces import LABELLED, write_drawn_faces

    _refuse(arguments.context, OF_PICTURES, f"has no effect on {DRAWN}")
    out, faces = arguments.out, FACES if arguments.faces is None else arguments.faces
    if out.suffix == ".pak":
        raise BadInput(f"{out}: the faces of two people need a folder; pack each side afterwards")
    if arguments.resolution not in (None, SIDE_PIXELS):
        raise BadInput(
            f"--resolution {arguments.resolution}: the drawn faces have {SIDE_PIXELS} x {SIDE_PIXELS} pixels, and "
            "training resizes them to what its recipe says; leave --resolution out"
        )
    write_drawn_faces(out, faces)
    print(f"{faces:,} faces of each of two people, {min(faces, LABELLED)} of them labelled, and their frames: {out}")
    print(f"Next: frugan train saehd-demo-64 --data {shlex.quote(str(out))} --out RUN")


def _refuse_of_pictures(arguments: PrepareOptions) -> None:
    """Refuse options that say how pictures are prepared.

    Raises:
        BadInput: a resolution was given, or an option has no effect.
    """
    _refuse(arguments.context, OF_PICTURES, "has no effect on faces, which are packed as they are")
    if arguments.resolution is not None:
        raise BadInput(f"--resolution {arguments.resolution}: faces are packed as they are; leave it out")


def _move_metadata(arguments: PrepareOptions, source: Path) -> None:
    """Save the metadata of faces in a file, or write them into pictures again."""
    from frugan.faces.data.metadata_file import restore_metadata, save_metadata

    _refuse_of_pictures(arguments)
    restores = source.suffix == METADATA
    with Bar("faces") as move:
        count = (restore_metadata if restores else save_metadata)(source, arguments.out, say, move)
    print(f"metadata of {count:,} faces: {shown(str(arguments.out))}")


def _unpack_faces(arguments: PrepareOptions, source: Path) -> None:
    """Write the faces of a faceset.pak as loose files."""
    from frugan.faces.data.faceset import unpack

    _refuse_of_pictures(arguments)
    with Bar("unpacking") as move:
        count = unpack(source, arguments.out, say, move)
    print(f"{count:,} faces: {shown(str(arguments.out))}")


def _pack_faces(arguments: PrepareOptions, source: Path) -> None:
    """Pack aligned faces."""
    from frugan.faces.data.faceset import pack

    _refuse_of_pictures(arguments)
    with Bar("packing") as move:
        count = pack(source, arguments.out, say, move)
    print(f"{count:,} faces: {arguments.out}")
    print(f"Next: frugan train saehd-df-ud-256 --data {shlex.quote(f'src={arguments.out}')} --data dst=... --out RUN")
