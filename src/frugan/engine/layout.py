"""How tensors are laid out: working weights as the device wants them, gradients as their masters are, all densely."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugan.contract.layers import Reparametrised


@dataclass(frozen=True)
class Layout:
    """How working weights are laid out.

    Attributes:
        dtype: compute dtype of everything but the parameters that a layer keeps in fp32.
        channels_last: 4-dimensional weights in channels-last order; activations follow them.
    """

    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def place(self, weight: Tensor, *, fp32: bool) -> Tensor:
        """Cast and lay out one weight; the same tensor if nothing changes."""
        room = self.room(weight, fp32=fp32)
        return weight if room is None else room.copy_(weight)

    def dtype_of(self, weight: Tensor, *, fp32: bool) -> torch.dtype:
        """Of a working weight."""
        # A float64 network (made by tests to measure rounding) stays float64.
        if weight.dtype == torch.float64:
            return weight.dtype
        return torch.float32 if fp32 else self.dtype

    def of_matrix(self, matrix: Tensor, weight: Tensor) -> Tensor:
        """A view of [O, I] that stands for a weight [O, I] or [O, I, 1, 1]."""
        if weight.ndim == 4 and self.channels_last:
            return matrix.detach()[:, None, None].permute(0, 3, 1, 2)
        return matrix.detach().view(weight.shape)

    def room(self, weight: Tensor, *, fp32: bool) -> Tensor | None:
        """Memory for a working weight, not filled; None if it has the weight's own dtype and layout.

        Args:
            fp32: it stays so in every precision.
        """
        dtype = self.dtype_of(weight, fp32=fp32)
        last = self.channels_last and weight.ndim == 4
        order = torch.channels_last if last else torch.preserve_format
        if weight.dtype == dtype and (not last or weight.is_contiguous(memory_format=order)):
            return None
        return torch.empty_like(weight, dtype=dtype, memory_format=order)


def in_layout_of(master: Tensor, value: Tensor) -> Tensor:
    """The same values as a master has them: optimizers walk a parameter and its tensors as flat memory."""
    return in_layouts_of([master], [value])[0]


def in_layouts_of(masters: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """The same values with the dtypes and strides of masters, in one operation; those that have them as they are."""
    found = list(values)
    changed = [
        i
        for i, (master, value) in enumerate(zip(masters, values, strict=True))
        if value.dtype != master.dtype or (value.shape == master.shape and value.stride() != master.stride())
    ]
    if changed:
        made = [torch.empty_like(masters[i]) for i in changed]
        torch._foreach_copy_(made, [values[i] for i in changed])
        for i, each in zip(changed, made, strict=True):
            found[i] = each.detach()
    return found


def lay_out_masters(network: nn.Module, layout: Layout) -> None:
    """Give plain convolutions' masters the layout of their working weights, so that a cast is a straight copy.

    Casting 28 million NCHW weights to channels-last, and their gradients back, took a sixth of a face model's step on a
    CPU. Reparametrised weights stay as they are: norms look at them as matrices.
    """
    if not layout.channels_last:
        return
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in network.modules():
        for name, master in list(module.named_parameters(recurse=False)):
            if master.ndim != 4 or (isinstance(module, Reparametrised) and name in module.reparametrised):
                continue
            if master not in made:
                laid = master.detach().contiguous(memory_format=torch.channels_last)
                made[master] = nn.Parameter(laid, requires_grad=master.requires_grad)
            module._parameters[name] = made[master]


def memory_of(tensor: Tensor) -> Tensor:
    """A tensor's elements as they lie in memory [numel].

    Raises:
        ValueError: they lie with gaps, or on top of each other.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    by_stride = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in by_stride:
        if size != 1 and stride != expected:
            raise ValueError(f"a tensor {tuple(tensor.shape)} with strides {tensor.stride()} does not lie densely")
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,))
