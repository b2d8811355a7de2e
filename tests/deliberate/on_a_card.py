"""Faults that show on a card alone, where work is queued, memory is its own and the host does not wait."""

from deliberate.fault import Fault

BITS = "simulated_card/test_training.py -k 'as_a_processor'"
WAITS = "simulated_card/test_training.py -k 'wait_for_nothing'"
MEMORY = "simulated_card/test_out_of_memory.py -k 'made-up'"
PEAKS = "simulated_card/test_peaks.py -k 'byte'"
SECOND = "simulated_card/test_training.py -k 'second_card'"

FAULTS = (
    # what is waited for, and what is not
    Fault(
        "a step's numbers are read while they are on their way",
        "engine/run/step_log.py",
        "        self.arrived.synchronize()\n",
        "",
        "simulated_card/test_training.py -k 'numbers'",
    ),
    Fault(
        "a step's numbers are noted as there before they are copied",
        "engine/run/step_log.py",
        "        if device.is_card:\n"
        '            packed = host_like(packed, "a step\'s numbers").copy_(packed, non_blocking=True)\n'
        "        return cls(step, results, tuple(numbers), packed, device.queued_so_far())",
        "        there = device.queued_so_far()\n"
        "        if device.is_card:\n"
        '            packed = host_like(packed, "a step\'s numbers").copy_(packed, non_blocking=True)\n'
        "        return cls(step, results, tuple(numbers), packed, there)",
        "simulated_card/test_training.py -k 'numbers'",
    ),
    Fault(
        "host memory of offload is used again while it is needed",
        "accelerator/host_memory.py",
        "        weakref.finalize(there, self._blocks.give_back, block)\n",
        "        self._blocks.give_back(block)\n",
        BITS,
    ),
    # copies beside what a card computes
    Fault(
        "copies do not wait for what is copied",
        "accelerator/host_memory.py",
        "    side.wait_event(accelerator.queued_so_far())\n",
        "",
        BITS,
    ),
    Fault(
        "what was offloaded is used before it has come back",
        "accelerator/host_memory.py",
        "            self.bring(away)\n        return away.take()\n",
        "            self.bring(away)\n        here, away.here = away.here, None\n        return here\n",
        BITS,
    ),
    Fault(
        "memory of what is sent to the host is given back while it leaves",
        "accelerator/host_memory.py",
        "            away.take()\n\n    def _copied",
        "            away.here = None\n\n    def _copied",
        BITS,
    ),
    Fault(
        "memory of what nobody asks for is given back while a copy is under way",
        "accelerator/host_memory.py",
        '        """Wait for the copy, so that its memory is not reused before."""\n        self.take()\n',
        '        """Wait for the copy, so that its memory is not reused before."""\n',
        "simulated_card/test_host_memory.py",
    ),
    Fault(
        "nothing comes back ahead of backward",
        "accelerator/host_memory.py",
        "            for tensor in inputs.earlier() if self._ahead else ():",
        "            for tensor in ():",
        "simulated_card/test_host_memory.py",
    ),
    Fault(
        "statistics are moved before they have come",
        "engine/state/optimizer.py",
        "                computing.wait_event(held[-1][1])\n",
        "",
        BITS,
    ),
    Fault(
        "statistics come over before the last update has written them back",
        "engine/state/optimizer.py",
        "    computing.wait_event(copied)\n    statistics.clear()\n",
        "    statistics.clear()\n",
        BITS,
    ),
    Fault(
        "weights move while they are on their way to the average",
        "engine/step/step.py",
        "verdict is already in.\n                state.ema.let_weights_move()\n",
        "verdict is already in.\n",
        BITS,
    ),
    Fault(
        "weights move at each micro-batch while they are on their way to the average",
        "engine/step/step.py",
        "                    state.ema.let_weights_move()\n                    _renew(",
        "                    _renew(",
        "simulated_card/test_training.py -k 'originals'",
    ),
    Fault(
        "averages are read before the last step's weights are there",
        "engine/state/ema.py",
        "        self._finish()\n        return self._averages\n",
        "        return self._averages\n",
        BITS,
    ),
    Fault(
        "averages do not wait for weights on their way to the host",
        "engine/state/ema.py",
        "        coming.arrived.synchronize()\n",
        "",
        BITS,
    ),
    Fault(
        "weights come over those that the average has not followed",
        "engine/state/ema.py",
        "        self._finish()\n        decay",
        "        decay",
        BITS,
    ),
    # where the host waits
    Fault(
        "the host looks at the verdict of each update",
        "engine/step/update.py",
        "state.skipped[result.phase] += ~result.accepted",
        "state.skipped[result.phase] += int(not result.accepted)",
        WAITS,
    ),
    Fault(
        "the host waits for each loss scale that is found already",
        "engine/step/update.py",
        "    if scale.found:\n        return False\n    scale.found = bool(result.accepted)",
        "    scale.found = bool(result.accepted)",
        WAITS,
    ),
    Fault(
        "pictures and draws are copied while the host waits",
        "engine/step/update.py",
        "tensor[here].to(device, non_blocking=True)",
        "tensor[here].to(device)",
        WAITS,
    ),
    Fault(
        "a step's numbers come over into pageable memory",
        "engine/run/step_log.py",
        'host_like(packed, "a step\'s numbers").copy_',
        'torch.empty_like(packed, device="cpu").copy_',
        WAITS,
    ),
    Fault(
        "shares of micro-batches are copied while the host waits",
        "engine/run/step_log.py",
        ".to(values.device, non_blocking=True)",
        ".to(values.device)",
        WAITS,
    ),
    Fault(
        "copies beside what a card computes let the host wait",
        "accelerator/host_memory.py",
        "target.copy_(value, non_blocking=True)",
        "target.copy_(value)",
        WAITS,
    ),
    Fault(
        "the average waits for the step that has just been queued",
        "engine/state/ema.py",
        "            self._coming = _Coming(names, decay, self._sent(names, moved))\n",
        "            self._coming = _Coming(names, decay, self._sent(names, moved))\n            self._finish()\n",
        WAITS,
    ),
    # what a card computes
    Fault(
        "an update takes torch's fused Adam for infinitely many steps, with a beta next to 1",
        "engine/state/piecewise_optimizer.py",
        "        *_, squares = statistics\n",
        "        *_, squares = statistics\n"
        "        if len(statistics) == 1:\n"
        "            after_many = torch.full((), math.inf, device=weights.device)\n"
        "            torch._fused_adam_(\n"
        "                [weights], [gradients], [gradients], [squares], [], [after_many], lr=-update.step,\n"
        "                beta1=1 - 2.0**-53, beta2=self.squares_decay, weight_decay=0.0, eps=self.eps, amsgrad=False,\n"
        "                maximize=False, grad_scale=None, found_inf=update.rejected.float(),\n"
        "            )\n"
        "            return\n",
        "simulated_card/test_arithmetic.py -k 'made-up-rmsprop'",
    ),
    # where things lie
    Fault(
        "statistics come over to the first card",
        "engine/state/optimizer.py",
        "torch.empty_like(statistic, device=device, pin_memory=False) for statistic in there",
        "torch.empty_like(statistic, device=device.type, pin_memory=False) for statistic in there",
        SECOND,
    ),
    Fault(
        "what was offloaded comes back to the first card",
        "accelerator/host_memory.py",
        "torch.empty_like(away.there, device=away.device,",
        "torch.empty_like(away.there, device=away.device.type,",
        SECOND,
    ),
    Fault(
        "averages stay on the card",
        "engine/state/ema.py",
        '_to(network, torch.device("cpu") if on_host else device)',
        "_to(network, device)",
        BITS,
    ),
    Fault(
        "a part of a larger tensor is copied by way of more memory",
        "accelerator/host_memory.py",
        "return tensor if reached == tensor.numel() else tensor.clone()",
        "return tensor",
        "simulated_card/test_host_memory.py",
    ),
    # memory
    Fault(
        "host memory that averages come over into counts on the card",
        "planning/step_memory.py",
        "averages = [*_averages(state), *landings] if",
        "averages = [*_averages(state)] if",
        PEAKS,
    ),
    Fault(
        "grids on the host are counted as if on the card",
        "planning/step_memory.py",
        "with self._tracker.elsewhere() if to_host else nullcontext():",
        "with nullcontext():",
        "planning/test_step_memory.py",
    ),
    Fault(
        "micro-batches that a plan leaves out leave no terms",
        "planning/step_memory.py",
        "self._tracker.repeat(list(terms.values()), self._left_out)",
        "self._tracker.repeat(list(terms.values()), 0)",
        "planning/test_step_memory.py",
    ),
    Fault(
        "the last micro-batch finds nothing that the second made",
        "planning/step_memory.py",
        "        if more_bytes > 0:\n",
        "        if False:\n",
        PEAKS,
    ),
    Fault(
        "the next step keeps a state's value beside the one that takes its place",
        "stepmemory/tracker.py",
        "-1 - places.get(-1 - event, -1 - event) if",
        "event if",
        "stepmemory/test_trace.py",
    ),
    Fault(
        "counts and scales do not count",
        "planning/step_memory.py",
        "(*_slots(state), *_numbers(state))",
        "_slots(state)",
        PEAKS,
    ),
    Fault(
        "an update leaves its verdict in the optimizer",
        "engine/state/optimizer.py",
        "            del self.found_inf  # always",
        "            pass  # always",
        PEAKS,
    ),
    Fault(
        "statistics of the host stay on the card after an update",
        "engine/state/optimizer.py",
        "                self.state[parameter] = host\n",
        "                pass\n",
        PEAKS,
    ),
    Fault(
        "gradients of an update that found no memory count in its repetition",
        "engine/step/step.py",
        "            parameter.grad = None\n",
        "            pass\n",
        MEMORY,
    ),
    Fault(
        "memory that runs out ends an update that could be repeated",
        "engine/step/update.py",
        "            if next_plan is None or not ran_out_of_memory(error):",
        "            if next_plan is None or ran_out_of_memory(error):",
        MEMORY,
    ),
    Fault(
        "a network of features stays on the card",
        "training/scores.py",
        "                self.network.to(HOST)\n",
        "                pass\n",
        "simulated_card/test_scores.py",
    ),
    Fault(
        "the cap stays where it was set though the context grows",
        "training/plan_in_force.py",
        "        if context_bytes <= card.context_bytes:\n",
        "        if context_bytes:\n",
        "simulated_card/test_budget.py -k whole_process",
    ),
    Fault(
        "the peak of a larger plan is reported for ever",
        "engine/run/loop.py",
        "            accelerator.reset_peaks()\n",
        "            pass\n",
        "simulated_card/test_budget.py -k peak",
    ),
    Fault(
        "a card that fails for good loses what was found",
        "doctor/selftest.py",
        "outcomes = [*outcomes, judged(",
        "outcomes = [judged(",
        "doctor/test_full.py -k fails_for_good",
    ),
    Fault(
        "a calibration takes what a small card has not",
        "stepmemory/calibration.py",
        "        while 2 * copied_bytes > room_bytes:\n            copied_bytes //= 2\n",
        "",
        "stepmemory/test_machine.py -k half_of_what_is_free",
    ),
    Fault(
        "products of constants are timed",
        "stepmemory/calibration.py",
        "torch.randn(side, side, dtype=dtype, device=device, generator=numbers)",
        "torch.full((side, side), 0.5, dtype=dtype, device=device)",
        "stepmemory/test_machine.py -k random_numbers",
    ),
    Fault(
        "ranks wait for each other where cards cannot add up",
        "engine/ranks/joining.py",
        "    _refuse_build(accelerator.collectives, platform.system())\n",
        "",
        "engine/test_ranks.py -k cannot_add_up",
    ),
    Fault(
        "nobody says that plans do not know how torch's allocator is set",
        "stepmemory/allocator.py",
        "for name in SETTINGS if environment.get(name)) or None",
        "for name in SETTINGS[1:] if environment.get(name)) or None",
        "doctor/test_host.py -k allocator_is_set",
    ),
)
