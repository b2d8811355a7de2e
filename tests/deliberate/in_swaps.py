"""Faults of Quick96 and of `frugan swap`."""

from deliberate.fault import Fault

FAULTS = (
    Fault(
        "a replay sees the warped faces again",
        "faces/quick96/phases.py",
        '{**pictures, "warped": pictures["target"]}',
        "{**pictures}",
        "faces/quick96/test_replay.py::test_every_third_step_reads_again_and_unwarped",
    ),
    Fault(
        "a replay takes a new batch and skips one",
        "contract/phase.py",
        "return step - step // self.every",
        "return step",
        "faces/quick96/test_replay.py::test_every_third_step_reads_again_and_unwarped",
    ),
    Fault(
        "Quick96's mask is blurred as SAEHD's, clipped and doubled",
        "faces/quick96/phases.py",
        'gaussian_blur(faces["mask"], BLUR), None)',
        'gaussian_blur(faces["mask"], BLUR).clamp(0, 0.5) * 2, None)',
        "parity/quick96/test_quick96.py::test_first_losses",
    ),
    Fault(
        "a decoder's arrays are not in the original's order",
        "faces/saehd/leras_names.py",
        "return sorted(named, key=turn)",
        "return named",
        "faces/quick96/test_quick96_files.py::test_keys_of_all_files_are_the_originals",
    ),
    Fault(
        "a whole head's mask is cut by the destination's",
        "faces/swapping/swap.py",
        'self.swap.face_type == "head"',
        'self.swap.face_type == "heads"',
        "faces/swapping/test_swap.py::test_masks_that_count",
    ),
    Fault(
        "XSeg's mask of the frame stays in its own square",
        "faces/swapping/swap.py",
        "_between(theirs, ours)",
        "_between(theirs, theirs)",
        "faces/swapping/test_swap.py::test_a_mask_of_another_square_lies_where_it_was_found",
    ),
    Fault(
        "pixels that the mask leaves out are rounded anew",
        "faces/swapping/composing.py",
        "return np.where(share > 0, mixed, frame)",
        "return np.where(share >= 0, np.rint(laid * 255).astype(np.uint8), frame)",
        "faces/swapping/test_composing.py::test_pixels_outside_the_mask_stay",
    ),
    Fault(
        "the mask's edge is widened where it should be narrowed",
        "faces/swapping/composing.py",
        "cv2.erode if erode > 0 else cv2.dilate",
        "cv2.erode if erode < 0 else cv2.dilate",
        "faces/swapping/test_composing.py::test_erosion_is_the_least_in_an_ellipse",
    ),
    Fault(
        "OpenCV writes into the mask that chooses the cloned pixels",
        "faces/swapping/composing.py",
        "region.copy()",
        "region",
        "faces/swapping/test_composing.py::test_seamless_takes_the_frames_light",
    ),
    Fault(
        "frames that are there are made again",
        "faces/swapping/frames.py",
        "if frame.path.name not in there or frame.path.name in redone]",
        "]",
        "faces/swapping/test_swap.py::test_frames_are_swapped_copied_and_kept",
    ),
    Fault(
        "what a frame lacks at its end is filled with grey",
        "faces/swapping/frames.py",
        "        refuse_cut_off(io.BytesIO(content), 0, len(content), shown(str(self.path)))\n",
        "",
        "faces/swapping/test_swap.py -k jpeg_frame",
    ),
    Fault(
        "faces of the source are swapped without a word",
        "faces/swapping/swap.py",
        "return faceset.digest == source != destination",
        "return False",
        "faces/swapping/test_swap.py -k wrong_side",
    ),
    Fault(
        "frames of another model stay though they are to be replaced",
        "faces/swapping/frames.py",
        "return {} if changed else known",
        "return known",
        "faces/swapping/test_swap.py -k more_training",
    ),
)
