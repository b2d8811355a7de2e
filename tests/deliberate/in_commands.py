"""Faults of what commands do beside training: a recipe that is chosen, a generator that is given away."""

from deliberate.fault import Fault

FAULTS = (
    # a recipe is chosen
    Fault(
        "a processor is given what is for cards",
        "api/choice.py",
        "if candidate.on_card and not machine.is_card:",
        "if False:",
        "api/test_choice.py -k processor",
    ),
    Fault(
        "a choice hangs on the last digit of a measurement",
        "api/choice.py",
        "return int(steps // unit * unit)",
        "return steps",
        "api/test_choice.py -k 'length or same'",
    ),
    Fault(
        "transparent pictures are not seen to be",
        "data/facts.py",
        "bool(picture.info.get(TRANSPARENT))",
        "False",
        "data/test_facts.py",
    ),
    # generators as ONNX models
    Fault(
        "an exported generator takes no notice of psi",
        "families/stylegan2/family.py",
        "near = generator.mapping.truncated(w, psi)[:, None]",
        "near = w[:, None]",
        "api/test_onnx_export.py -k 'torch_draws and stylegan2-False'",
    ),
    Fault(
        "an exported generator takes no notice of classes",
        "families/r3gan/family.py",
        "return cast(Tensor, generator(z, shares)).clamp(-1, 1)",
        "return cast(Tensor, generator(z, shares if shares is None else shares * 0)).clamp(-1, 1)",
        "api/test_onnx_export.py::test_shares_mix_classes",
    ),
    Fault(
        "the generator is exported as it was trained, not its average",
        "api/export/onnx.py",
        "weights = Weights.open(source, say)",
        "weights = Weights.open(source, say).trained",
        "api/test_onnx_export.py -k averaged_generator",
    ),
    Fault(
        "an export in half precision is one in single precision",
        "api/export/onnx.py",
        "Layout(torch.float16 if half else torch.float32)",
        "Layout()",
        "api/test_onnx_export.py -k 'torch_draws and r3gan-True'",
    ),
    Fault(
        "an exported model whose pictures are not finite is kept",
        "api/export/onnx.py",
        "if not largest <= BOUNDS[half]:",
        "if largest > BOUNDS[half]:",
        "api/test_onnx_export.py -k something_else",
    ),
    Fault(
        "an exported model draws as many pictures as it was recorded with",
        "api/export/tracing.py",
        "return Samples(times)",
        "return few",
        "api/test_onnx_export.py -k 'torch_draws and biggan-False'",
    ),
    Fault(
        "a page's class names may end its script",
        "api/export/site.py",
        r'.replace("<", "\\u003c")',
        "",
        "api/test_web_export.py -k holds_what_the_page_needs",
    ),
    Fault(
        "directions of other weights are taken",
        "api/explore/directions.py",
        'if values.get("weights") != weights or values.get("space") != space.name:',
        'if values.get("space") != space.name:',
        "api/test_explore.py -k damaged_directions",
    ),
    Fault(
        "the direction that changes least comes first",
        "api/explore/directions.py",
        ".eigenvectors.flip(1).T",
        ".eigenvectors.T",
        "api/test_explore.py -k known_by_hand",
    ),
    Fault(
        "moves are no standard deviations",
        "api/explore/directions.py",
        "amount * direction.deviation * direction.vector",
        "amount * direction.vector",
        "api/test_explore.py -k units_and_layers",
    ),
    Fault(
        "latents of a stage are taken for those of the stage before",
        "families/biggan/networks.py",
        "place = number + 1 if self.hierarchical else 0",
        "place = number if self.hierarchical else 0",
        "families/test_latent_spaces.py -k every_map",
    ),
    Fault(
        "one style is found for each layer where one for all is asked for",
        "api/explore/projection.py",
        'layers = self.space.layers if name.endswith("+") else 1',
        "layers = self.space.layers",
        "api/test_projection.py -k found_again",
    ),
    Fault(
        "a page runs the code of a file that a request names",
        "page/latents.py",
        '        _one_of("features", features, SAFE_FEATURES)\n',
        "",
        "page/test_explore.py -k cannot_begin",
    ),
    Fault(
        "every click of fifty is drawn",
        "page/worker.py",
        "self._waiting.pop(kind)[1].set_exception(Overtaken(kind))",
        'self._waiting[f"{kind}{len(self._waiting)}"] = self._waiting.pop(kind)',
        "page/test_explore.py -k only_the_newest",
    ),
    Fault(
        "names of directions are lost when others are found",
        "api/explore/sheets.py",
        "found = found.beside(explorer.directions(path))",
        "explorer.directions(path)",
        "api/test_explore.py -k names_are_not_lost",
    ),
)
