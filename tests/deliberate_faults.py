"""Puts one fault after the other into a copy of the code and runs the tests that should notice: `make faults`.

`python tests/deliberate_faults.py WORD ...` tries the faults whose name holds one of the words. Ends with 1 if a fault
is not caught, if the tests fail without any, or if a fault's old text is no longer there (once). Needs `os.fork`.
"""

import compileall
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis  # noqa: F401  (with torch most of a test's start: loaded once, before the forks)
import pytest
import torch

ROOT = Path(__file__).parents[1]
TESTS_FAILED = 1
"""What pytest ends with then; everything else says nothing about the fault."""


@dataclass(frozen=True)
class Fault:
    """A change of the code that tests must notice.

    Attributes:
        name: what goes wrong.
        file: in `src/frugan`.
        old: text that stands there once.
        new: what takes its place.
        tests: what should fail, as pytest names it, in `tests`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = (
    # the step
    Fault(
        "gradients of micro-batches are not weighted by their shares",
        "engine/step.py",
        "micro, own, gain * share, plan",
        "micro, own, gain, plan",
        "contract/test_engine.py::test_micro_batch_changes_nothing",
    ),
    Fault(
        "observations are committed by an update that is not finite",
        "engine/step.py",
        "observer.commit(accepted)",
        "observer.commit(None)",
        "contract/test_engine.py::test_non_finite_phase_commits_nothing",
    ),
    Fault(
        "gradients that were carried are overwritten by the next micro-batch's",
        "engine/working_weights.py",
        "                master.grad.add_(gradient)",
        "                master.grad = gradient",
        "parity/test_traces.py::test_trace[bg32_hier-train_plain-1]",
    ),
    Fault(
        "half gradients of small layers add up in half precision",
        "engine/leaf_sums.py",
        "    if half:",
        "    if not half:",
        "engine/test_working_weights.py",
    ),
    Fault(
        "half gradients of large layers add up in half precision",
        "engine/leaf_sums.py",
        "self.value = _sum_of_halves(self.value, gradient, self._one)",
        "self.value = self.value.add_(gradient)",
        "engine/test_working_weights.py",
    ),
    Fault(
        "gradients are not unscaled",
        "engine/gradients.py",
        "torch._foreach_mul_(list(gradients.values()), inverse_scale)",
        "torch._foreach_mul_(list(gradients.values()), 1)",
        "contract/test_engine.py::test_fp16_gradients_are_unscaled",
    ),
    Fault(
        "gradients are not released",
        "engine/step.py",
        "parameter.grad = None",
        "pass",
        "contract/test_engine.py -k released",
    ),
    Fault(
        "a loss scale is not halved after an overflow",
        "engine/precision.py",
        "torch.where(grown, 2.0, 1.0), 0.5)",
        "torch.where(grown, 2.0, 1.0), 1.0)",
        "engine/test_precision.py -k loss_scale",
    ),
    Fault(
        "a card before 8.0 is given bf16",
        "engine/precision.py",
        "return capability >= (8, 0)",
        "return capability >= (7, 0)",
        "engine/test_precision.py",
    ),
    Fault(
        "a repeated phase does not follow the smaller plan",
        "engine/retries.py",
        "plan = next_plan(plan, update.phase.name, message)",
        "next_plan(plan, update.phase.name, message)",
        "memory/test_out_of_memory.py -k repeated_as_if",
    ),
    Fault(
        "large draws do not depend on the image",
        "engine/streams.py",
        "self._seed(phase, step, repeat, name, image)",
        "self._seed(phase, step, repeat, name, first)",
        "engine/test_streams.py",
    ),
    Fault(
        "a recomputation observes again",
        "engine/recompute.py",
        "self._flag(True)",
        "self._flag(False)",
        "contract/test_engine.py::test_recompute_is_bit_equal",
    ),
    # averages and optimizers
    Fault(
        "the average takes weight and decay the wrong way round",
        "engine/ema.py",
        "1 - decay, held_back)",
        "decay, held_back)",
        "contract/test_engine.py::test_ema_schedules",
    ),
    Fault(
        "the average follows an update that was not accepted",
        "engine/ema.py",
        "held_back = (~accepted).float()",
        "held_back = torch.zeros(())",
        "contract/test_engine.py::test_non_finite_phase_commits_nothing",
    ),
    Fault(
        "Adam keeps its first learning rate",
        "engine/adam.py",
        'group["lr"] = learning_rate',
        'group["lr"] = group["lr"]',
        "engine/test_optimizers.py api/test_training.py::test_learning_rate_changed_at_resume_is_used",
    ),
    Fault(
        "RMSprop's eps stands inside the root",
        "engine/piecewise_optimizers.py",
        "gradients, self.decay, self.eps, rate",
        "[g + self.eps**0.5 for g in gradients], self.decay, 0.0, rate",
        "parity/saehd/test_optimizers.py",
    ),
    Fault(
        "AdaBelief forgets the mean",
        "engine/piecewise_optimizers.py",
        "follow_and_subtract(ms, gradients, 1 - self.betas[0], held_back)",
        "follow_and_subtract(ms, [g.clone() for g in gradients], 1 - self.betas[0], held_back)",
        "parity/saehd/test_optimizers.py",
    ),
    # objectives
    Fault(
        "R1 without its half",
        "objectives/gradient_penalty.py",
        ".square().sum((1, 2, 3)) / 2",
        ".square().sum((1, 2, 3))",
        "objectives/test_gradient_penalty.py",
    ),
    Fault(
        "path lengths sum over styles",
        "objectives/path_length.py",
        ".square().sum(2).mean(1).sqrt()",
        ".square().sum(2).sum(1).sqrt()",
        "parity/stylegan2/test_training.py::test_losses_and_penalties",
    ),
    Fault(
        "DSSIM with another constant",
        "objectives/dssim.py",
        "0.01**2, 0.03**2",
        "0.01**2, 0.02**2",
        "parity/saehd/test_objectives.py",
    ),
    Fault(
        "orthogonal regularisation keeps the diagonal",
        "objectives/orthogonal.py",
        "gram.fill_diagonal_(0.0)",
        "gram.fill_diagonal_(1.0)",
        "parity/test_layers.py",
    ),
    # layers
    Fault(
        "running statistics move twice as fast",
        "nn/batch_norm.py",
        "MOMENTUM = 0.1",
        "MOMENTUM = 0.2",
        "parity/test_layers.py",
    ),
    Fault(
        "groups of a batch are normalised together",
        "nn/batch_norm.py",
        "else x.split(group)",
        "else x.split(len(x))",
        "nn/test_batch_norm.py",
    ),
    Fault(
        "the power iteration stands still",
        "nn/spectral_norm.py",
        "_without(v @ matrix.T, left)",
        "_without(u, left)",
        "parity/test_layers.py",
    ),
    Fault(
        "minibatch deviations are unbiased",
        "nn/minibatch_std.py",
        "y.var(1, correction=0)",
        "y.var(1, correction=1)",
        "parity/stylegan2/test_operations.py parity/stylegan2/test_forward.py",
    ),
    Fault(
        "demodulation takes styles as they are",
        "nn/modulated.py",
        "styles.square() @ squares.T",
        "styles @ squares.T",
        "parity/stylegan2/test_forward.py",
    ),
    # what the discriminator sees
    Fault(
        "ADA turns hues by half of what was drawn",
        "augment/colour.py",
        "(hue * 2 - 1) * math.pi",
        "(hue * 2 - 1) * math.pi / 2",
        "parity/test_ada.py",
    ),
    Fault(
        "ADA's probability is steered away from its target",
        "augment/augmentation.py",
        "(sign - target).sign()",
        "(target - sign).sign()",
        "augment/test_augmentation.py",
    ),
    # memory and plans
    Fault(
        "what was freed still counts",
        "memory/tracker.py",
        "self.live_bytes -= size_bytes",
        "self.live_bytes -= 0",
        "memory/test_tracker.py",
    ),
    Fault(
        "a prediction runs one micro-batch only",
        "memory/prediction.py",
        "micro_batches=1 if rough else 2",
        "micro_batches=1",
        "memory/test_prediction.py -k smallest_micro_batches",
    ),
    Fault(
        "a plan is taken for what lives, not for what is reserved",
        "memory/search.py",
        "if choice.prediction.reserved_bytes <= budget_bytes:",
        "if choice.prediction.live_bytes <= budget_bytes:",
        "memory/test_search.py::test_more_memory_is_never_slower",
    ),
    Fault(
        "the allocator's large segments are half as large",
        "memory/allocator.py",
        "LARGE_SEGMENT_BYTES = 20 * MIB",
        "LARGE_SEGMENT_BYTES = 10 * MIB",
        "memory/test_allocator.py",
    ),
    # what a run survives
    Fault(
        "a run goes back to the same order of data",
        "api/train/stages.py",
        "seed_after(training.seed, rollbacks)",
        "training.seed",
        "faults/test_divergence.py::test_it_stops_with_the_cause_at_last",
    ),
    Fault(
        "a checkpoint with bad weights is gone back to",
        "api/train/recovery.py",
        "        if _finite(found[0].path):",
        "        if found:",
        "faults/test_divergence.py::test_a_bad_weight_in_a_checkpoint_that_seems_sound",
    ),
    Fault(
        "an owner on another machine is not watched",
        "engine/run_lock.py",
        "if _touched(owner) not in (last, None):",
        "if _touched(owner) is None:",
        "faults/test_lock.py::test_an_owner_on_another_machine",
    ),
    Fault(
        "a face without an end is taken",
        "data/faces/faceset.py",
        "tail > begin:",
        "tail >= begin or end > begin:",
        "faults/test_lost_pictures.py::test_a_face_that_is_cut_off_is_found_before_training",
    ),
    Fault(
        "other hosts' names are answered",
        "api/report/report_server.py",
        '.partition(":")[0] not in NAMES:',
        '.partition(":")[0] in ("evil.example",):',
        "api/test_report.py::test_the_server_answers_get_and_head_alone",
    ),
    # the doctor
    Fault(
        "the self-test lets a wrong prediction pass",
        "api/doctor/memory_check.py",
        "passed=abs(off) < TRACKED",
        "passed=True",
        "api/doctor/test_selftest.py -k wrong_prediction",
    ),
    Fault(
        "the self-test lets a saving pass that changes the result",
        "api/doctor/step_checks.py",
        "passed=difference < limit and not unused",
        "passed=not unused",
        "api/doctor/test_selftest.py -k changes_the_result",
    ),
    Fault(
        "the self-test lets a step pass that waits",
        "api/doctor/waiting_check.py",
        "passed=not watcher.found and",
        "passed=",
        "api/doctor/test_selftest.py -k waits",
    ),
    Fault(
        "an average in one's own loop follows a step that a scaler skips",
        "ema_hook.py",
        "(found == 0)",
        "(found >= 0)",
        "test_ema_hook.py -k scaler",
    ),
    # checkpoints, events, report
    Fault(
        "a damaged checkpoint passes for whole",
        "engine/checkpoint.py",
        "if found != expected:",
        "if not found:",
        "engine/test_loop.py::test_damaged_checkpoint_is_named_and_passed_over",
    ),
    Fault(
        "a resumed optimizer begins anew",
        "engine/optimizer.py",
        "            into.copy_(value)",
        "            into.copy_(0 * value)",
        "contract/test_families.py::test_checkpoint_restores_everything[made-up-adam]",
    ),
    Fault(
        "a resumed run forgets its loss scale",
        "engine/checkpoint.py",
        "into.scale.fill_(scale)",
        "into.scale.fill_(1.0)",
        "engine/test_loop.py::test_a_loss_scale_goes_on_where_it_was",
    ),
    Fault(
        "a resumed run repeats a step",
        "engine/checkpoint.py",
        "state.step = checkpoint.step",
        "state.step = checkpoint.step - 1",
        "engine/test_loop.py::test_resume_is_bit_for_bit_after_a_kill",
    ),
    Fault(
        "an event is written behind half a line",
        "engine/events.py",
        "        if cut:\n",
        "        if not cut:\n",
        "engine/test_events.py",
    ),
    Fault(
        "names can end the report's script",
        "report/page.py",
        '.replace("<", "\\\\u003c")',
        "",
        "report/test_page.py",
    ),
    Fault(
        "names are markup in the report",
        "report/page.py",
        "<b>{html.escape(value)}</b>",
        "<b>{value}</b>",
        "report/test_page.py",
    ),
    # data, recipes, samples, files from elsewhere
    Fault(
        "every epoch has the same order",
        "data/batches.py",
        "/order/{self._name}/{epoch}",
        "/order/{self._name}",
        "data/test_batches.py",
    ),
    Fault(
        "pictures are mirrored top to bottom",
        "data/batches.py",
        "[mirrored, :, :, ::-1]",
        "[mirrored, :, ::-1]",
        "data/test_batches.py",
    ),
    Fault(
        "any batch goes with any normalisation batch",
        "recipe.py",
        "group = self.normalisation_batch or 1",
        "group = 1",
        "api/test_bad_input.py::test_recipes_that_cannot_be",
    ),
    Fault(
        "truncation is ignored",
        "families/biggan/sheets.py",
        "generator=random) * request.truncation",
        "generator=random)",
        "families/test_biggan.py::test_truncation_shortens_latents",
    ),
    Fault(
        "dense layers are imported as they lie",
        "families/saehd/files/leras_names.py",
        "return value.T if value.ndim == 2 else value",
        "return value",
        "families/test_leras_names.py parity/saehd/test_weights.py",
    ),
    Fault(
        "a pickle may nest without end",
        "pickles/reader.py",
        "MOST_LEVELS = 16",
        "MOST_LEVELS = 1600",
        "pickles/test_reader.py -k hostile",
    ),
    Fault(
        "FID without the covariances' common part",
        "metrics/frechet.py",
        "- 2 * _trace_of_root(one, other)",
        "- _trace_of_root(one, other)",
        "metrics/test_scores.py -k frechet",
    ),
    Fault(
        "adding up over a ring counts one way only",
        "memory/link.py",
        "return 2 * (cards - 1) / cards * size_bytes",
        "return (cards - 1) / cards * size_bytes",
        "memory/test_link.py",
    ),
    Fault(
        "cards of unequal speed are dealt alike",
        "api/plan/several_cards.py",
        "[1 / alone_seconds[number] for number in kind_of_rank]",
        "[1.0 for number in kind_of_rank]",
        "api/test_several_cards.py -k unequal",
    ),
    Fault(
        "a fetched shard that ends early is kept",
        "data/fetching.py",
        "if about.size is not None and taken != about.size:",
        "if about.size is not None and taken > about.size:",
        "data/test_remote_shards.py -k cut_short",
    ),
    Fault(
        "fetched shards are never deleted",
        "data/remote_shards.py",
        "if file != but:",
        "if file == but:",
        "data/test_remote_shards.py -k small_cache",
    ),
)


def run_tests(tests: str, source: Path) -> tuple[int, str]:
    """Run tests in short mode on a copy of the code, in a process of their own that has torch already.

    Returns:
        What pytest ended with, and the last lines that it printed.
    """
    words, _, expression = tests.partition(" -k ")
    arguments = ["-x", "-q", "-p", "no:cacheprovider", *(f"tests/{word}" for word in words.split())]
    arguments += ["-k", expression.strip("'")] if expression else []
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            sys.path.insert(0, str(source))
            os.environ["PYTHONPATH"] = str(source)  # of the processes that tests start
            code = int(pytest.main(arguments))
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        printed.seek(0)
        return os.waitstatus_to_exitcode(status), "\n".join(printed.read().splitlines()[-5:])


def verdict(fault: Fault, source: Path) -> str:
    """Put a fault into the copy, run its tests, and take it out again."""
    path = source / "frugan" / fault.file
    sound = path.read_text("utf-8")
    if sound.count(fault.old) != 1:
        return f"NO FAULT: {fault.file} holds {fault.old!r} {sound.count(fault.old)} times"
    path.write_text(sound.replace(fault.old, fault.new), "utf-8")
    try:
        code, said = run_tests(fault.tests, source)
    finally:
        path.write_text(sound, "utf-8")
    if code == TESTS_FAILED:
        return "caught"
    return "NOT caught" if code == 0 else f"NO VERDICT: pytest ended with {code}: {said}"


def main(words: Sequence[str]) -> int:
    """Try faults.

    Args:
        words: of their names; none: all.
    """
    os.chdir(ROOT)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a fault of the same size within a second would pass for what it was
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    chosen = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        compileall.compile_dir(source, quiet=1)
        failed = 0
        for fault in chosen:
            found = verdict(fault, source)
            failed += found != "caught"
            print(f"{found:10}  {fault.file}: {fault.name}", flush=True)
        print(f"{len(chosen) - failed} of {len(chosen)} caught")
        code, said = run_tests(" ".join(dict.fromkeys(each.tests.partition(" ")[0] for each in chosen)), source)
        if code:
            print(f"without a fault these tests fail as well:\n{said}")
    return 1 if failed or code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
