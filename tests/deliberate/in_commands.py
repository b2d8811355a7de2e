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
)
