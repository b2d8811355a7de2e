"""What fails inside of a backward pass, on its way out through C++."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import checkpoint
from torch.utils.backend_registration import _DummyDeviceGuard


class Guard(_DummyDeviceGuard):
    """What C++ asks for the kind of the device, also while an error is under way.

    Python would take an answer that comes beside an error for a fault, and C++ ends the process on it. So that error is
    forgotten here, with one that is raised and caught; `Backward` has kept it.
    """

    def type_(self) -> Any:
        try:
            raise RuntimeError
        except BaseException:  # noqa: BLE001
            pass
        return torch._C._autograd.DeviceType.PrivateUse1


@dataclass
class Backward:
    """The passes that are under way."""

    depth: int = 0
    failure: RuntimeError | None = None  # the first

    def keeping(self, operation: Callable[[], Any]) -> Any:
        """What an operation gives; an error is kept while a pass is under way."""
        try:
            return operation()
        except RuntimeError as error:
            if self.depth and self.failure is None:
                self.failure = error
            raise

    def kept(self, dispatch: Callable[..., Any]) -> Callable[..., Any]:
        """A mode's way to do operations, whose errors are kept."""
        return lambda *args, **kwargs: self.keeping(lambda: dispatch(*args, **kwargs))

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Torch's way into the engine, which tells what failed inside."""

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self.depth:
                self.failure = None  # of a pass that went on without what had failed
            self.depth += 1
            try:
                return run(*args, **kwargs)
            except (RuntimeError, SystemError):
                failure, self.failure = self.failure, None
                if failure is None:
                    raise
                # a card's errors come without the frames, and tensors, of what the card does
                raise failure.with_traceback(None) from None
            finally:
                self.depth -= 1

        return run_backward


def watch_backward() -> Backward:
    """Let every pass of this process be watched."""
    backward = Backward()
    run = backward.watched(torch.autograd.graph._engine_run_backward)
    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
    # what a selective recomputation refuses, it refuses before an operation comes to the card
    for mode in (checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode):
        mode.__torch_dispatch__ = backward.kept(mode.__torch_dispatch__)  # type: ignore[method-assign]
    return backward
