"""Labels in files of other programs: labelme's JSON, COCO's JSON and PNGs, in both directions. Untrusted.

Sources: labelme's file format (shapes of polygons, by label); COCO's data format (images, annotations with polygons as
rows x, y, x, y ..., or run lengths by columns); a PNG is white where the face is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import MOST_SIDE
from frugan.faces.data.face import Face, Polygon
from frugan.faces.data.geometry import opencv
from frugan.faces.masks.outlines import outlines
from frugan.faces.xseg.samples import decoded_mask, polygon_mask
from frugan.files import read_json, read_untrusted
from frugan.wording import shown

LabelFormat = Literal["labelme", "coco", "png", "jpg"]
COCO_FILE = "labels.json"
"""What a folder of labels in COCO's format holds."""
"""A jpg is what the original's `util --export-faceset-mask` writes; it is not read."""
INCLUDE, EXCLUDE = "face", "exclude"
"""Labels of what belongs to the face, and of what does not; any other label belongs to it too."""
EXCLUDING = frozenset({EXCLUDE, "exclusion", "not face", "background", "occlusion", "obstruction"})
LEAST_POINTS = 3
MOST_BYTES = 256 << 20
ORIGINAL_SUFFIX = "_mask.jpg"


def key_of(face: Face) -> str:
    """Name of a face in a set, with its person's folder: "anna/00001_0.jpg"."""
    return "/".join([*([face.person] if face.person else []), face.name])


def mask_of(face: Face, *, applied_first: bool = False) -> NDArray[np.uint8] | None:
    """The mask that a face has, 0 or 1, at its picture's size: of its polygons, else the one that was applied.

    Args:
        applied_first: the other way round, as the original's export has it.
    """
    if face.xseg_mask is not None and (applied_first or not face.polygons):
        mask = decoded_mask(face)
        if mask.shape != (face.height, face.width):
            mask = opencv().resize(mask, (face.width, face.height), interpolation=opencv().INTER_LINEAR)
        return (mask >= 0.5).astype(np.uint8)
    return polygon_mask(face.polygons, face.height, face.width).astype(np.uint8) if face.polygons else None


def polygons_of(face: Face) -> tuple[Polygon, ...]:
    """Polygons of a face, else outlines of the mask that was applied."""
    if face.polygons:
        return face.polygons
    mask = mask_of(face)
    return () if mask is None else outlines(mask)


def written(faces: Sequence[Face], kind: LabelFormat, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of labels; faces without any are left out.

    Args:
        folder: of the pictures, as the files shall name it.
    """
    if kind == "coco":
        yield COCO_FILE, _json(_coco(faces))
        return
    for face in faces:
        stem = str(Path(key_of(face)).with_suffix(""))
        if kind == "labelme":
            if polygons := polygons_of(face):
                yield f"{stem}.json", _json(_labelme(face, polygons, folder))
        elif (mask := mask_of(face, applied_first=kind == "jpg")) is not None:
            suffix, end = (".png", ".png") if kind == "png" else (ORIGINAL_SUFFIX, ".jpg")
            yield f"{stem}{suffix}", opencv().imencode(end, mask * np.uint8(255))[1].tobytes()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _labelme(face: Face, polygons: Sequence[Polygon], folder: str) -> dict[str, Any]:
    shapes = [
        {
            "label": INCLUDE if polygon.include else EXCLUDE,
            "points": polygon.points.tolist(),
            "group_id": None,
            "shape_type": "polygon",
            "flags": {},
        }
        for polygon in polygons
    ]
    return {
        "version": "5.0.1",
        "flags": {},
        "shapes": shapes,
        "imagePath": f"{folder}/{key_of(face)}",
        "imageData": None,
        "imageHeight": face.height,
        "imageWidth": face.width,
    }


def _coco(faces: Sequence[Face]) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, face in enumerate(faces, 1):
        images.append({"id": number, "file_name": key_of(face), "width": face.width, "height": face.height})
        for polygon in polygons_of(face):
            low, high = polygon.points.min(axis=0), polygon.points.max(axis=0)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 1 if polygon.include else 2,
                    "segmentation": [polygon.points.flatten().tolist()],
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "area": float(polygon_mask([Polygon(True, polygon.points)], face.height, face.width).sum()),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": 1, "name": INCLUDE}, {"id": 2, "name": EXCLUDE}]
    return {"images": images, "annotations": annotations, "categories": categories}


def read_labels(source: Path, faces: Sequence[Face]) -> dict[int, tuple[Polygon, ...]]:
    """Read labels for faces: a folder of labelme's files or PNGs, or a file of COCO's, or a folder with `COCO_FILE`.

    Returns:
        Index of a face -> its polygons, in the picture's pixels.

    Raises:
        BadInput: nothing there is a label of one of the faces, or one is damaged, of another size, or has fewer than
            three points.
    """
    if not source.exists():
        raise BadInput(f"{shown(str(source))} does not exist; expected a folder of labelme files or PNGs, or a .json")
    if source.is_file():
        found = _from_coco(source, faces)
    else:
        found = {}
        for index, face in enumerate(faces):
            place = source / Path(key_of(face)).with_suffix("")
            for path in (place.with_name(f"{place.name}.json"), place.with_name(f"{place.name}.png")):
                if path.is_file():
                    found[index] = _from_labelme(path, face) if path.suffix == ".json" else _from_png(path, face)
                    break
        if not found and (source / COCO_FILE).is_file():
            found = _from_coco(source / COCO_FILE, faces)
    if not found:
        raise BadInput(
            f"{shown(str(source))}: no label in it is of one of the {len(faces):,} faces; expected names as theirs, "
            f"such as {Path(key_of(faces[0])).with_suffix('.json')} or .png, or a COCO file that names them"
        )
    return found


def _from_labelme(path: Path, face: Face) -> tuple[Polygon, ...]:
    where = shown(str(path))
    about = _object(path)
    size = about.get("imageWidth"), about.get("imageHeight")
    if None not in size and size != (face.width, face.height):
        raise _other_size(where, size, face)
    shapes = about.get("shapes")
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise BadInput(f"{where}: expected shapes, as labelme writes them; this is another kind of file")
    polygons = []
    for number, shape in enumerate(shapes):
        if (kind := shape.get("shape_type", "polygon")) not in ("polygon", "linestrip"):
            raise BadInput(f"{where}: shape {number} is a {str(kind)[:40]}; expected polygons alone")
        include = str(shape.get("label", "")).strip().lower() not in EXCLUDING
        polygons.append(Polygon(include, points_of(shape.get("points"), f"{where}: shape {number}", face)))
    return tuple(polygons)


def _from_png(path: Path, face: Face) -> tuple[Polygon, ...]:
    cv2, where = opencv(), shown(str(path))
    data = np.frombuffer(read_untrusted(path, MOST_BYTES), np.uint8)
    mask = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE) if len(data) else None
    if mask is None:
        raise BadInput(f"{where} cannot be decoded; expected a picture that is white where the face is")
    if mask.shape != (face.height, face.width):
        raise _other_size(where, mask.shape[::-1], face)
    return outlines((mask >= 128).astype(np.uint8))


def _from_coco(path: Path, faces: Sequence[Face]) -> dict[int, tuple[Polygon, ...]]:
    where, about = shown(str(path)), _object(path)
    parts = [about.get(name) for name in ("images", "annotations")]
    if not all(isinstance(part, list) and all(isinstance(one, dict) for one in part) for part in parts):
        raise BadInput(f"{where}: expected images and annotations, as COCO has them; labelme's files come as a folder")
    images, annotations = parts
    names = {key_of(face): index for index, face in enumerate(faces)}
    by_name = {Path(name).name: index for name, index in names.items()}
    indices: dict[Any, int] = {}
    for image in images or []:
        name = str(image.get("file_name"))
        index = names.get(name, by_name.get(Path(name).name))
        if index is None:
            continue
        size = image.get("width"), image.get("height")
        if None not in size and size != (faces[index].width, faces[index].height):
            raise _other_size(f"{where}: {shown(name)}", size, faces[index])
        indices[str(image.get("id"))] = index
    categories = about.get("categories")
    excluding = {
        str(one.get("id"))
        for one in (categories if isinstance(categories, list) else [])
        if isinstance(one, dict) and str(one.get("name", "")).strip().lower() in EXCLUDING
    }
    found: dict[int, tuple[Polygon, ...]] = {}
    for annotation in annotations or []:
        if (index := indices.get(str(annotation.get("image_id")))) is None:
            continue
        include, what = str(annotation.get("category_id")) not in excluding, f"{where}: annotation"
        rows = annotation.get("segmentation")
        if not isinstance(rows, list):
            raise BadInput(f"{what} {shown(str(annotation.get('id')))}: run lengths; expected polygons")
        for row in rows:
            pairs = np.reshape(row, (-1, 2)).tolist() if isinstance(row, list) and len(row) % 2 == 0 else None
            polygon = Polygon(include, points_of(pairs, f"{what} {shown(str(annotation.get('id')))}", faces[index]))
            found[index] = (*found.get(index, ()), polygon)
    return found


def _object(path: Path) -> Mapping[str, Any]:
    def damaged(why: str) -> BadInput:
        return BadInput(f"{shown(str(path))} cannot be read as JSON ({why}); save it again")

    return read_json(path, damaged)


def points_of(value: Any, what: str, face: Face) -> NDArray[np.float32]:
    """The points of a polygon, float32 [n, 2].

    Raises:
        BadInput: fewer than three, or no numbers within the face's surroundings.
    """
    if not isinstance(value, list) or len(value) < LEAST_POINTS:
        number = len(value) if isinstance(value, list) else "no"
        raise BadInput(f"{what} has {number} points; expected three or more around the face: draw it again")
    try:
        points = np.asarray(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        points = np.empty(0)
    side = max(face.width, face.height)
    if points.ndim != 2 or points.shape[1] != 2 or not (np.abs(points) <= min(2 * side, MOST_SIDE)).all():
        raise BadInput(
            f"{what}: expected pairs of numbers x, y near the picture of {face.width} x {face.height} pixels"
        )
    return points.astype(np.float32)


def _other_size(where: str, size: Sequence[Any], face: Face) -> BadInput:
    return BadInput(
        f"{where}: is for a picture of {size[0]} x {size[1]} pixels; {shown(face.name)} has {face.width} x "
        f"{face.height}: draw it on the face itself"
    )
