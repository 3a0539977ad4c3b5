"""A local Ray head without the helpers that a single job on one machine never uses.

`ray.init(address="local")` also starts a dashboard server, an autoscaler and a log monitor, waits for them in turn, and
then looks for its own raylet once a second. Leaving them out, and looking every few milliseconds, more than halves the
time until the first actor runs and leaves a small machine's cores to the job. Ray has no public switch for this: the
names used here are private, so `connection.start_local` falls back to `ray.init` where a Ray release lacks them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray._private.authentication import authentication_token_setup as authentication
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._raylet import Config  # pyright: ignore[reportAttributeAccessIssue]

REGISTRATION_TIMEOUT_S = 30.0
_POLL_S = 0.01
_DASHBOARD_IMPORTS = "ray.dashboard.optional_deps"


class LocalHead(Node):
    """GCS server and raylet of a Ray that lives and dies with this process.

    The processes are bound to this one by the kernel where it can, by a reaper elsewhere: none outlives a kill.
    """

    def __init__(
        self, *, num_cpus: int | None, resources: Mapping[str, float], object_store_memory_bytes: int | None
    ) -> None:
        params = RayParams(
            num_cpus=num_cpus,
            resources=dict(resources) or None,
            object_store_memory=object_store_memory_bytes,
            include_dashboard=False,
            include_log_monitor=False,  # pyright: ignore[reportArgumentType]  # Ray's hint says str
            no_monitor=True,
            dashboard_host="127.0.0.1",
        )
        self._forget_token = require_token(create=True)
        try:
            with without_dashboard():
                super().__init__(params, head=True, shutdown_at_exit=False, spawn_reaper=True)
        except BaseException:  # also on Ctrl-C: nothing that was started may stay
            self.stop()
            raise

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Not started: it serves the dashboard and the state API, and takes seconds."""

    def start_ray_processes(self) -> None:
        """Return once the raylet is registered, so that the caller's look-up, which naps for a second, succeeds."""
        super().start_ray_processes()
        deadline = time.monotonic() + REGISTRATION_TIMEOUT_S
        gcs = self.get_gcs_client()
        while gcs is not None and time.monotonic() < deadline:
            if gcs.get_all_node_info(timeout=REGISTRATION_TIMEOUT_S):
                return
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End every process of this Ray; the raylet ends its workers. Idempotent."""
        self.kill_all_processes(check_alive=False, allow_graceful=True)
        self._forget_token()


def require_token(*, create: bool) -> Callable[[], None]:
    """Work with a Ray that lets in only who has this user's token, as every local Ray does.

    Returns what undoes it: a process in that mode cannot work with a Ray without tokens, and it may join one next.

    Raises:
        ray.exceptions.AuthenticationError: this user has no token, and `create` is false.
    """
    variable = authentication.AUTH_MODE_ENV_VAR
    before = os.environ.get(variable)

    def undo() -> None:
        if before is None:
            os.environ.pop(variable, None)
            Config.initialize("")  # Ray reads the variable once, until told to read it again

    logger = logging.getLogger(authentication.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)  # Ray announces on every start that there are tokens
    try:
        authentication.enable_token_auth_by_default()
        authentication.ensure_token_if_auth_enabled({}, create_token_if_missing=create)
    except BaseException:
        undo()
        raise
    finally:
        logger.setLevel(level)
    return undo


@contextmanager
def without_dashboard() -> Iterator[None]:
    """Let Ray find its dashboard's packages missing, so that its agents start in their minimal form."""
    modules: dict[str, Any] = sys.modules  # None in sys.modules is how Python marks a module as not importable
    known = modules.get(_DASHBOARD_IMPORTS)
    modules[_DASHBOARD_IMPORTS] = None
    try:
        yield
    finally:
        if known is None:
            del modules[_DASHBOARD_IMPORTS]
        else:
            modules[_DASHBOARD_IMPORTS] = known
