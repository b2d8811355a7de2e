"""Forwards, gradients and averages of the generator, by the state dicts of StyleGAN3's release."""

from collections.abc import Callable, Mapping
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from frugan.contract.layers import Observer, Stateful
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import make_callable, prepared
from frugan.families.stylegan3.networks import Generator, SynthesisLayer
from parity.stylegan3.golden import CASES, Case, load

TOLERANCE = 1e-5
"""Relative to the largest value; the authors' own operations differ by as much between orders of sums."""
HALF = 2e-2

each_case = pytest.mark.parametrize("name", CASES)


def built(case: Case) -> Generator:
    generator = Generator(case.networks)
    generator.load_state_dict(case.state)
    return generator


def off(ours: Tensor, reference: Tensor) -> float:
    assert ours.shape == reference.shape
    return float((ours - reference).abs().max() / reference.abs().max())


def forward_errors(case: Case, generator: Generator) -> Mapping[str, float]:
    """Errors of styles, of every layer's output, of pictures, and of a picture that is moved."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda module, inputs, output: outputs.update({name: output})

    for name, module in generator.synthesis.named_children():
        module.register_forward_hook(keep(name))
    z, classes = case.io("z"), case.classes
    with prepared(generator), torch.no_grad():
        w = generator.mapping(z, classes)
        found = {"ws": generator.broadcast(w), "ws_psi0.7_cut4": generator.broadcast(w, 0.7, 4)}
        found["img"] = generator(z, classes)
        for name, output in outputs.items():
            found[f"act.{name}"] = output[:1, : case.io(f"act.{name}").shape[1]]
        generator.synthesis.input.transform.copy_(case.io("transform"))
        found["img_transformed"] = generator(z, classes)[:1]
    assert {name for name in found if name.startswith("act.")} == {
        "act.input",
        *(f"act.{name}" for name in case.layers),
    }
    return {name: off(value, case.io(name)) for name, value in found.items()}


@each_case
def test_styles_maps_and_pictures(name: str) -> None:
    case = load(name)
    errors = forward_errors(case, built(case))
    inside = {name for name in errors if name.startswith("act.")}
    assert max(errors[name] for name in errors.keys() - inside) <= TOLERANCE
    # maps between layers are not averaged over anything: 1.03e-5 in one of them on a processor with AVX2
    assert max(errors[name] for name in inside) <= 1.5 * TOLERANCE


def gradient_errors(case: Case, generator: Generator) -> Mapping[str, float]:
    """Relative errors of the norm of each parameter's gradient."""
    pictures = make_callable(generator)(case.io("z"), case.classes)
    (pictures * case.io("grad_v")).sum().backward()
    norms = {name: cast(Tensor, parameter.grad).norm() for name, parameter in generator.named_parameters()}
    return {name: abs(float(norm / case.io(f"gradnorm.{name}")) - 1) for name, norm in norms.items()}


@each_case
def test_gradients(name: str) -> None:
    case = load(name)
    assert max(gradient_errors(case, built(case)).values()) <= TOLERANCE


def commit_one(generator: Generator, layer: Stateful, run: Callable[[], object]) -> None:
    """Run the generator in training, and let a single layer's observations move its buffer."""
    observer = Observer()
    with prepared(generator), torch.no_grad():
        layer.observer = observer
        generator.mapping.train()
        run()
    observer.commit(None)
    layer.observer = None


@each_case
def test_averages_after_an_update(name: str) -> None:
    """The release moves a layer's average before the layer runs: so here the layers' averages move one by one."""
    case = load(name)
    generator = built(case)
    z, classes = case.io("z"), case.classes

    def run() -> object:
        return generator.synthesis(generator.broadcast(generator.mapping(z, classes)), observed=True)

    parts = {
        "mapping": generator.mapping,
        **{f"synthesis.{key}": generator.get_submodule(f"synthesis.{key}") for key in case.layers},
    }
    for part in parts.values():
        commit_one(generator, cast(Stateful, part), run)
    for key, part in parts.items():
        buffer = "w_avg" if key == "mapping" else "magnitude_ema"
        moved, recorded = part.get_buffer(buffer), case.io(f"after_update.{key}.{buffer}")
        assert not torch.equal(recorded, case.data[f"G.{key}.{buffer}"])
        assert off(moved, recorded) <= 1e-6, key
    with prepared(generator), torch.no_grad():
        assert off(generator(z, classes)[:1], case.io("img_update_emas")) <= TOLERANCE


def test_nothing_is_observed_unless_it_is_asked_for() -> None:
    case = load("t_res32")
    generator = built(case)
    observer = Observer()
    for module in generator.modules():
        if isinstance(module, Stateful):
            module.observer = observer
    ws = generator.broadcast(generator.mapping(case.io("z"), None, observed=0))
    generator.synthesis(ws)
    assert observer.sums(ws.device)[:-1] == []


@each_case
def test_a_picture_does_not_depend_on_the_others(name: str) -> None:
    """The release brings styles to a mean square of 1 over all pictures, which demodulation takes back."""
    case = load(name)
    generator, classes = built(case), case.classes
    with prepared(generator), torch.no_grad():
        alone = generator(case.io("z")[:1], None if classes is None else classes[:1])
    assert off(alone, case.io("img")[:1]) <= TOLERANCE


@each_case
def test_fp16(name: str) -> None:
    case = load(name)
    with prepared(built(case), Layout(torch.float16)) as generator, torch.no_grad():
        pictures = generator(case.io("z"), case.classes)
    assert TOLERANCE < off(pictures, case.io("img")) <= HALF


# A criterion that nothing can fail would say nothing.


def turned_the_other_way(generator: Generator) -> None:
    affine = generator.synthesis.input.affine
    with torch.no_grad():
        affine.weight[1].neg_()
        affine.bias[1].neg_()


def with_a_clamp_that_bites(generator: Generator) -> None:
    for layer in generator.synthesis.layers:
        layer.clamp = 0.5


def with_another_magnitude(generator: Generator) -> None:
    generator.synthesis.colours.magnitude_ema.mul_(1.0001)


def with_another_filter(generator: Generator) -> None:
    last: SynthesisLayer = generator.synthesis.layers[-1]
    last.down_filter[0] *= 1.1


@each_case
@pytest.mark.parametrize(
    "fault", [turned_the_other_way, with_a_clamp_that_bites, with_another_magnitude, with_another_filter]
)
def test_faults_are_seen(name: str, fault: Callable[[Generator], None]) -> None:
    case = load(name)
    generator = built(case)
    fault(generator)
    assert max(forward_errors(case, generator).values()) > 3 * TOLERANCE
    generator = built(case)
    fault(generator)
    assert max(gradient_errors(case, generator).values()) > 3 * TOLERANCE
