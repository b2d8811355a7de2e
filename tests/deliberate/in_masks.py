"""Faults in XSeg, its masks and its labels."""

from deliberate.fault import Fault

FAULTS = (
    Fault(
        "excluding polygons do not win over those that come after them",
        "faces/xseg/samples.py",
        "sorted(polygons, key=lambda polygon: not polygon.include)",
        "polygons",
        "faces/xseg/test_xseg_samples.py -k excluding_wins",
    ),
    Fault(
        "upsampling drops the first row and column in place of the last",
        "faces/xseg/networks.py",
        "F.pad(whole, (0, -1, 0, -1))",
        "F.pad(whole, (-1, 0, -1, 0))",
        "parity/xseg/test_forward.py",
    ),
    Fault(
        "small probabilities stay in an applied mask's resizing",
        "faces/xseg/masking.py",
        "np.where(one < LEAST, np.float32(0), one)",
        "np.where(one < 0.45, np.float32(0), one)",
        "faces/masks/test_apply.py -k are_the_originals",
    ),
    Fault(
        "masks are stored at the picture's size",
        "faces/xseg/masking.py",
        "if found.shape != (MASK_SIDE, MASK_SIDE):",
        "if False:",
        "faces/masks/test_apply.py -k are_the_originals",
    ),
    Fault(
        "the switch for the original's cut does nothing",
        "faces/xseg/masking.py",
        "flags = cv2.INTER_LINEAR if self.as_original else cv2.INTER_LANCZOS4",
        "flags = cv2.INTER_LINEAR",
        "faces/masks/test_apply.py -k mended",
    ),
    Fault(
        "narrowing widens",
        "faces/xseg/masking.py",
        "return 1 - grown(1 - mask, -pixels)",
        "return grown(mask, -pixels)",
        "faces/masks/test_apply.py -k growing",
    ),
    Fault(
        "a relabelled face is lost beside the one that it should replace",
        "faces/data/relabel.py",
        "            with atomic_file(path) as beside:\n                write_flushed(beside, content)\n",
        "            with atomic_file(path) as beside:\n                path.with_suffix('.old').write_bytes(b'')\n",
        "faces/masks/test_apply.py -k full_disk",
    ),
    Fault(
        "a face that was written since it was opened is cut off at its old length",
        "faces/data/relabel.py",
        "relabelled_jpeg(path.read_bytes(), face, label)",
        "relabelled_jpeg(faceset.encoded(index), face, label)",
        "faces/masks/test_drawing.py -k xseg_learns_from",
    ),
    Fault(
        "a pak gets the new masks in its index alone",
        "faces/data/relabel.py",
        "yield relabelled_jpeg(jpeg, after[index], label) if index in after else jpeg",
        "yield jpeg",
        "faces/masks/test_apply.py -k pak_hold",
    ),
    Fault(
        "holes with something in them are filled",
        "faces/masks/outlines.py",
        "if (filled == part).all():",
        "if True:",
        "faces/masks/test_labels.py -k outlines_fill",
    ),
    Fault(
        "labels to exclude are included",
        "faces/masks/label_files.py",
        'include = str(shape.get("label", "")).strip().lower() not in EXCLUDING',
        "include = True",
        "faces/masks/test_labels.py -k exclusion",
    ),
    Fault(
        "masks of data.masks of other weights are taken",
        "setup/masks.py",
        'key = sha256(f"{digest}/{network.networks!r}/{source.digest}".encode()).hexdigest()[:32]',
        'key = sha256(source.name.encode()).hexdigest()[:32] if hasattr(source, "name") else "one"',
        "faces/masks/test_data_masks.py -k other_weights",
    ),
    Fault(
        "masks of data.masks for another face type are taken",
        "setup/masks.py",
        "/{network.networks!r}/",
        "/",
        "faces/masks/test_data_masks.py -k originals_folder",
    ),
    Fault(
        "data.masks does not know the original's folder",
        "faces/xseg/leras.py",
        "        if not is_original(source):\n            return None\n        networks, network",
        "        return None\n        networks, network",
        "faces/masks/test_data_masks.py -k originals_folder",
    ),
)
