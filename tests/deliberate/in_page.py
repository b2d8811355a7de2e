"""Faults of the page: of who may ask, of its queue, of what it tells."""

from deliberate.fault import Fault

FAULTS = (
    Fault(
        "a mistyped folder is made",
        "page/server.py",
        "        if not folder.is_dir():\n",
        "        folder.mkdir(parents=True, exist_ok=True)\n        if not folder.is_dir():\n",
        "page/test_guard.py -k cannot_be_served",
    ),
    Fault(
        "Ctrl-C closes the socket under the server",
        "page/server.py",
        "            ended.wait(LAST_SECONDS)",
        "            listening.close()",
        "page/test_server.py -k starts",
    ),
    Fault(
        "a score that sees nothing is shown",
        "reporting/standing.py",
        """    if "two-sample" in str(measured.get("blind", NONE)).split(","):
        yield""",
        """    if False:
        yield""",
        "reporting/test_standing.py -k sees_nothing",
    ),
    Fault(
        "the page answers to any host",
        "page/guard.py",
        'if host.partition(":")[0] not in NAMES:',
        "if False:",
        "page/test_guard.py -k foreign_host",
    ),
    Fault(
        "another origin may ask the page",
        "page/guard.py",
        'if headers.get("origin", f"http://{host}") != f"http://{host}" or (foreign and method == "POST"):',
        'if foreign and method == "POST":',
        "page/test_guard.py -k another_origin",
    ),
    Fault(
        "any token opens the page",
        "page/guard.py",
        'return secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())',
        "return bool(token)",
        "page/test_guard.py -k without_its_token",
    ),
    Fault(
        "scripts of others see the page's cookie",
        "page/guard.py",
        'httponly=True, samesite="strict"',
        'samesite="lax"',
        "page/test_guard.py -k into_a_cookie",
    ),
    Fault(
        "a body that never says how long it is, is read to its end",
        "page/guard.py",
        "        if len(body) > most_bytes:\n",
        "        if False:\n",
        "page/test_guard.py -k too_large",
    ),
    Fault(
        "a run may hold links",
        "page/runs.py",
        "return _regular(run.events) and not any(file.is_symlink() for file in files)",
        "return run.events.is_file()",
        "page/test_guard.py -k no_way_leads_out",
    ),
    Fault(
        "a folder of runs may be a link",
        "page/owners.py",
        "        if path.is_symlink():\n",
        "        if False:\n",
        "page/test_guard.py -k no_way_leads_out",
    ),
    Fault(
        "a sheet of billions of pixels is reduced",
        "page/pictures.py",
        "if opened.width * opened.height > MOST_PIXELS:",
        "if False:",
        "page/test_guard.py -k bomb",
    ),
    Fault(
        "each click begins a process",
        "page/queue.py",
        "        with self._lock:\n",
        "        if True:\n",
        "page/test_queue.py -k fifty",
    ),
    Fault(
        "a training ends with its page",
        "page/queue.py",
        'flags: dict[str, Any] = {"start_new_session": True}',
        "flags: dict[str, Any] = {}",
        "page/test_queue.py -k page_is_killed",
    ),
    Fault(
        "a training that was begun by others is begun again",
        "page/queue.py",
        'if any(entry.state == "running" for entry in entries):',
        "if False:",
        "page/test_queue.py -k works_it_off",
    ),
    Fault(
        "the queue does not wait for what trains elsewhere",
        "page/queue.py",
        'return "wait" if busy else waiting[0]',
        "return waiting[0]",
        "page/test_queue.py -k trained_elsewhere",
    ),
    Fault(
        "a training is taken for dead after a night",
        "page/owners.py",
        "        elif self._seen[path][0] != touched:\n",
        "        elif False:\n",
        "page/test_queue.py -k owners",
    ),
    Fault(
        "options of a command from elsewhere are taken over",
        "page/steering.py",
        "elif option in KEPT:",
        'elif option.startswith("--"):',
        "page/test_steering.py -k from_elsewhere",
    ),
    Fault(
        "curves that are told in part keep what gave way",
        "page/runs.py",
        "if step <= after), default=0)",
        "if step <= after + 1), default=0)",
        "page/test_runs.py -k only_what_is_new",
    ),
)
