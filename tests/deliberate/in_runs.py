"""Faults of what a run survives, of its checkpoints, events and report, and of how it goes on."""

from deliberate.fault import Fault

FAULTS = (
    # what a run survives
    Fault(
        "a run goes back to the same order of data",
        "api/train/beginning.py",
        "seed_after(training.seed, start.decision.rollbacks)",
        "training.seed",
        "faults/test_divergence.py::test_it_stops_with_the_cause_at_last",
    ),
    Fault(
        "a checkpoint with bad weights is gone back to",
        "api/train/recovery.py",
        "        if _finite(newest[0].path):",
        "        if newest:",
        "faults/test_divergence.py::test_a_bad_weight_in_a_checkpoint_that_seems_sound",
    ),
    Fault(
        "an owner on another machine is not watched",
        "engine/run_folder.py",
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
        "api/report.py",
        '.partition(":")[0] not in NAMES:',
        '.partition(":")[0] in ("evil.example",):',
        "api/test_report.py::test_the_server_answers_get_and_head_alone",
    ),
    # checkpoints, events, report
    Fault(
        "a damaged checkpoint passes for whole",
        "engine/checkpoint.py",
        "if actual != expected:",
        "if not actual:",
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
        'b"\\n" if cut else b""',
        'b"" if cut else b"\\n"',
        "engine/test_events.py",
    ),
    Fault(
        "events that a full disk did not take are dropped",
        "engine/events.py",
        "            if not self._keeps(error):\n                raise\n        for",
        '            if not self._keeps(error):\n                raise\n            self._unwritten = b""\n        for',
        "faults/test_disk.py -k 'events'",
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
        "report/page.html",
        "<b>{{ value }}</b>",
        "<b>{{ value|safe }}</b>",
        "report/test_page.py",
    ),
    # how a run goes on
    Fault(
        "what a later stage drops is not carried by the first",
        "engine/training.py",
        "every = [phase for each in self.stages for phase in each.phases]",
        "every = phases",
        "families/test_r3gan.py -k later_stage_drops",
    ),
    Fault(
        "intervals by the clock begin anew with each session",
        "engine/progress.py",
        "            before, self.last = self.last, max(self.last, seconds)\n",
        "            if seconds - self.last < self.every.amount:\n                return False\n"
        "            before, self.last = 0.0, seconds\n",
        "engine/test_progress.py -k short_sessions",
    ),
    Fault(
        "a stop waits for grids that are due",
        "engine/loop.py",
        "if self._due and stop.asked:",
        "if False:",
        "engine/test_loop.py -k waits_for_no_pictures",
    ),
    Fault(
        "backups from within the trouble stay",
        "api/train/recovery.py",
        "    set_aside_newer(run.folder.backups, checkpoint, DIVERGED)\n",
        "",
        "faults/test_divergence.py -k seems_sound",
    ),
    Fault(
        "fp16 that never works ends a run before its first checkpoint",
        "api/train/recovery.py",
        "if newest is None and untouched and may_widen:",
        "if False:",
        "faults/test_divergence.py -k before_the_first_checkpoint",
    ),
    Fault(
        "a second try from the start forgets the weights to start from",
        "api/train/recovery.py",
        "if not sound and run.start is None:",
        "if False:",
        "api/test_chosen_runs.py -k the_same_weights",
    ),
    Fault(
        "the same command without a folder begins anew",
        "api/train/open_run.py",
        "if folder.exists and asked.items() <= choice_of(folder.events).items():",
        "if False:",
        "api/test_chosen_runs.py -k without_a_folder",
    ),
    Fault(
        "other pictures go on with the run of the first ones",
        "api/train/open_run.py",
        "if folder.exists and asked.items() <= choice_of(folder.events).items():",
        "if folder.exists and choice_of(folder.events):",
        "api/test_chosen_runs.py -k without_a_folder",
    ),
    Fault(
        "a run trains on its own grids",
        "api/train/open_run.py",
        "        _refuse_among_pictures(run.path.resolve(), data)\n",
        "        pass\n",
        "api/test_chosen_runs.py -k among_its_pictures",
    ),
)
