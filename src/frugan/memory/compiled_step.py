"""Stands in for compiled phases where a step is run without data: takes memory and work as their graphs would.

The rest of the step is the step itself, and a phase that would not be compiled runs as it is written here too.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.backward import forward_and_backward
from frugan.engine.compiled_phases import refused
from frugan.engine.phase_graph import PhaseInputs, PhaseWork, Results
from frugan.engine.plan import Plan
from frugan.memory.dataless import META, Dataless
from frugan.memory.fused_kernels import Kernel, kernels_of, last_readers, peak_bytes
from frugan.memory.joint_graph import JointGraph, record
from frugan.memory.tracker import Tracker


@dataclass(frozen=True)
class _Recorded:
    """A phase's work on micro-batches of one size.

    Attributes:
        graph, kernels: what is done.
        results: what it gives.
        given_bytes: of what it is given.
    """

    graph: JointGraph
    kernels: list[Kernel]
    results: Results
    given_bytes: int

    def run(self, tracker: Tracker) -> list[Tensor]:
        """Make what is stored, free it after its last reader, and count each kernel; gives the results."""
        kept, last = {*self.graph.results}, last_readers(self.kernels)
        held: dict[int, Tensor] = {}
        for at, kernel in enumerate(self.kernels):
            tracker.place = kernel.place
            for number in kernel.makes:
                held[number] = self._storage(number)
                if self._is_for_backward(number, last[number]):
                    tracker.mark("saved activations", [held[number]])
            tracker.count((kernel.bytes_moved, kernel.macs, kernel.fp32_macs))
            for number in (*kernel.makes, *kernel.reads):
                if last[number] == at and number not in kept:
                    held.pop(number, None)
        return [
            # an input that is handed through is not made by any kernel
            _like(tensor, held[number] if number in held else self._storage(number))
            for number, tensor in zip(self.graph.results, self.graph.tensors, strict=True)
        ]

    def pool(self) -> Tensor:
        """Memory of a CUDA graph, which nothing else may use: what it works in, and copies of what it is given."""
        size_bytes = peak_bytes(self.graph, self.kernels) + self.given_bytes
        return torch.empty(size_bytes, dtype=torch.uint8, device=META)

    def replay(self, tracker: Tracker) -> list[Tensor]:
        """Start all kernels at once, in memory that is there, and copy what they give."""
        results = {number: self._storage(number) for number in self.graph.results}
        copied = 2 * (self.given_bytes + sum(storage.nbytes for storage in results.values()))
        moved, macs, fp32_macs = (
            sum(getattr(kernel, name) for kernel in self.kernels) for name in ("bytes_moved", "macs", "fp32_macs")
        )
        tracker.count((moved + copied, macs, fp32_macs))
        return [
            _like(tensor, results[number])
            for number, tensor in zip(self.graph.results, self.graph.tensors, strict=True)
        ]

    def _storage(self, number: int) -> Tensor:
        return torch.empty(self.graph.values[number].size_bytes, dtype=torch.uint8, device=META)

    def _is_for_backward(self, number: int, last: int) -> bool:
        """Whether a value is made in a forward and read last in a backward."""
        values = self.graph.values
        return values[number].forward and not values[self.kernels[last].makes[0]].forward


@dataclass
class DatalessCompiledPhases:
    """Forward and backward of micro-batches, as `forward_and_backward`: what they would take if they were compiled.

    Attributes:
        tracker: notes what is made and freed.
        dataless: runs operations without data.
    """

    tracker: Tracker
    dataless: Dataless
    _known: dict[object, _Recorded] = field(default_factory=dict)
    _pools: dict[object, Tensor] = field(default_factory=dict)

    def __call__(
        self, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> Terms:
        """Take what the compiled phase takes; terms and gradients without data."""
        if refused(phase, plan, shared=micro.shared is not None) is not None:
            return forward_and_backward(phase, networks, micro, own, factor, plan)
        given = PhaseInputs.of(phase, networks, micro, own)
        key = (phase.name, tuple(given.shapes().items()))
        if key not in self._known:
            work = PhaseWork(phase, networks, micro, own, factor, plan)
            graph = record(work, work.examples(), self.dataless, lambda: self.tracker.place)
            given_bytes = sum(tensor.nbytes for tensor in given.tensors.values())
            self._known[key] = _Recorded(graph, kernels_of(graph), work.results, given_bytes)
        recorded = self._known[key]
        with torch.no_grad():
            if plan.cuda_graphs and key not in self._pools:
                self._pools[key] = recorded.pool()
            found = recorded.replay(self.tracker) if plan.cuda_graphs else recorded.run(self.tracker)
            return recorded.results.hand_over(found, given, own)


def _like(tensor: Tensor, storage: Tensor) -> Tensor:
    """A tensor like another one, in a storage of bytes."""
    return storage.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
