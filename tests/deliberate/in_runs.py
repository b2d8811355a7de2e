"""Faults of what a run survives, of its checkpoints, events and report, and of how it goes on."""

from deliberate.fault import Fault

FAULTS = (
    # what a run survives
    Fault(
        "a run goes back to the same order of data",
        "training/beginning.py",
        "seed_after(training.seed, start.decision.rollbacks)",
        "training.seed",
        "faults/test_divergence.py::test_it_stops_with_the_cause_at_last",
    ),
    Fault(
        "a checkpoint with bad weights is gone back to",
        "training/recovery.py",
        "        if _finite(newest[0].path):",
        "        if newest:",
        "faults/test_divergence.py::test_a_bad_weight_in_a_checkpoint_that_seems_sound",
    ),
    Fault(
        "an owner on another machine is not watched",
        "engine/run/run_folder.py",
        "if _touched(owner) not in (last, None):",
        "if _touched(owner) is None:",
        "faults/test_lock.py::test_an_owner_on_another_machine",
    ),
    Fault(
        "a face without an end is taken",
        "faces/data/faceset.py",
        "tail > begin:",
        "tail >= begin or end > begin:",
        "faults/test_lost_pictures.py::test_a_face_that_is_cut_off_is_found_before_training",
    ),
    Fault(
        "other hosts' names are answered",
        "reporting/report.py",
        '.partition(":")[0] not in NAMES:',
        '.partition(":")[0] in ("evil.example",):',
        "reporting/test_report.py::test_the_server_answers_get_and_head_alone",
    ),
    # checkpoints, events, report
    Fault(
        "a damaged checkpoint passes for whole",
        "engine/run/checkpoint.py",
        "if actual != expected:",
        "if not actual:",
        "engine/test_loop.py::test_damaged_checkpoint_is_named_and_passed_over",
    ),
    Fault(
        "a resumed optimizer begins anew",
        "engine/state/optimizer.py",
        "            into.copy_(value)",
        "            into.copy_(0 * value)",
        "contract/test_families.py::test_checkpoint_restores_everything[made-up-adam]",
    ),
    Fault(
        "a resumed run forgets its loss scale",
        "engine/run/checkpoint.py",
        "into.scale.fill_(scale)",
        "into.scale.fill_(1.0)",
        "engine/test_loop.py::test_a_loss_scale_goes_on_where_it_was",
    ),
    Fault(
        "a resumed run repeats a step",
        "engine/run/checkpoint.py",
        "state.step = checkpoint.step",
        "state.step = checkpoint.step - 1",
        "engine/test_loop.py::test_resume_is_bit_for_bit_after_a_kill",
    ),
    Fault(
        "an event is written behind half a line",
        "engine/run/events.py",
        'b"\\n" if cut else b""',
        'b"" if cut else b"\\n"',
        "engine/test_events.py",
    ),
    Fault(
        "events that a full disk did not take are dropped",
        "engine/run/events.py",
        "            if not self._keeps(error):\n                raise\n        for",
        '            if not self._keeps(error):\n                raise\n            self._unwritten = b""\n        for',
        "faults/test_disk.py -k 'events'",
    ),
    Fault(
        "names can end the report's script",
        "reporting/run_report.py",
        '.replace("<", "\\\\u003c")',
        "",
        "reporting/test_run_report.py",
    ),
    Fault(
        "names are markup in the report",
        "reporting/page.html",
        "<b>{{ value }}</b>",
        "<b>{{ value|safe }}</b>",
        "reporting/test_run_report.py",
    ),
    # how a run goes on
    Fault(
        "what a later stage drops is not carried by the first",
        "engine/run/training.py",
        "phases = [phase for stage in self.stages for phase in stage.phases]",
        "phases = list(self.phases)",
        "families/test_r3gan.py -k later_stage_drops",
    ),
    Fault(
        "intervals by the clock begin anew with each session",
        "engine/durations.py",
        "            before, self.last = self.last, max(self.last, seconds)\n",
        "            if seconds - self.last < self.every.amount:\n                return False\n"
        "            before, self.last = 0.0, seconds\n",
        "engine/test_progress.py -k short_sessions",
    ),
    Fault(
        "a stop waits for grids that are due",
        "engine/run/loop.py",
        "if self._due and stop.asked:",
        "if False:",
        "engine/test_loop.py -k waits_for_no_pictures",
    ),
    Fault(
        "backups from within the trouble stay",
        "training/recovery.py",
        "    set_aside_newer(run.folder.backups, checkpoint, DIVERGED)\n",
        "",
        "faults/test_divergence.py -k seems_sound",
    ),
    Fault(
        "fp16 that never works ends a run before its first checkpoint",
        "training/recovery.py",
        "if newest is None and untouched and may_widen:",
        "if False:",
        "faults/test_divergence.py -k before_the_first_checkpoint",
    ),
    Fault(
        "the same command without a folder begins anew",
        "training/open_run.py",
        "if folder.exists and chosen.items() <= choice_of(folder.events).items():",
        "if False:",
        "training/test_chosen_runs.py -k without_a_folder",
    ),
    Fault(
        "other pictures go on with the run of the first ones",
        "training/open_run.py",
        "if folder.exists and chosen.items() <= choice_of(folder.events).items():",
        "if folder.exists and choice_of(folder.events):",
        "training/test_chosen_runs.py -k without_a_folder",
    ),
    Fault(
        "a run trains on its own grids",
        "training/open_run.py",
        "        _refuse_among_pictures(run.path.resolve(), data)\n",
        "        pass\n",
        "training/test_chosen_runs.py -k named_recipe_among_its_pictures",
    ),
    Fault(
        "a total of steps that a run is beyond is taken",
        "training/recovery.py",
        "if steps is not None and steps < step:",
        "if False:",
        "training/test_training.py -k resumes_bit_for_bit",
    ),
    # ranks that do not run the same
    Fault(
        "plans of a shared group are compared by one of its ranks alone",
        "engine/ranks/group.py",
        "        plans = team.gather(forwards_of(plan), phase)\n",
        "        own = forwards_of(plan)\n"
        "        plans = team.gather(own, phase) if plan.recompute else [own] * len(team.ranks)\n",
        "distributed/test_shared_groups.py -k 'every_way'",
    ),
    Fault(
        "what only some ranks call is waited for",
        "engine/ranks/watch.py",
        "if reason is None and (reason := self._another_way()) is not None:",
        "if reason is not None:",
        "engine/test_ranks.py -k 'another_way'",
    ),
    Fault(
        "a rank that is behind has gone another way",
        "engine/ranks/watch.py",
        "here = way.at(number)",
        "here = way.at(way.count)",
        "engine/test_ranks.py -k 'takes_its_time'",
    ),
    Fault(
        "what a team calls is compared by itself",
        "engine/ranks/watch.py",
        "if some.start >= together.start and some.stop <= together.stop:",
        "if some == together:",
        "engine/test_ranks.py -k 'leaves_out'",
    ),
)
