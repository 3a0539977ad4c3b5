"""A group of workers: launched together, called together."""

from __future__ import annotations

import importlib.machinery
import inspect
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import cloudpickle

from headrace.core.errors import ConfigError, WaitTimeoutError, nearest
from headrace.system.cluster.cluster import Cluster
from headrace.system.cluster.placement import PackedPlacementStrategy, Placement, PlacementStrategy
from headrace.system.runtime import session as sessions
from headrace.system.runtime.address import WorkerAddress
from headrace.system.runtime.handle import Handle, Outcome, RankCall
from headrace.system.runtime.host import Boarding, Order, Packed, RemoteHost, WorkerHost, pack, unpack
from headrace.system.runtime.logs import DriverHandler, log_path, worker_logger
from headrace.system.runtime.seat import Seat, is_concurrent
from headrace.system.runtime.session import Session

W = TypeVar("W")
BESIDE_THREADS = 32
STOP_TIMEOUT_S = 5.0


class Scatter:
    """An argument that differs by rank: `group.load(Scatter([a, b]))` gives `a` to rank 0 and `b` to rank 1."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)


class _RankHost(Protocol):
    """How a group reaches one rank's host, wherever it runs."""

    def start(self, order: Order) -> Future[Outcome]: ...

    def call(self, method: str, arguments: Packed, *, beside: bool) -> Future[Outcome]: ...

    def stop(self) -> None: ...


class _InlineRank:
    """A host in this process, on threads of its own."""

    def __init__(self, seat: Seat, max_concurrency: int) -> None:
        self._host = WorkerHost(Path(seat.info.log_path))
        self._seat = seat
        name = seat.info.address.get_name()
        self._in_order = ThreadPoolExecutor(max_concurrency, thread_name_prefix=f"headrace-{name}")
        self._beside = ThreadPoolExecutor(BESIDE_THREADS, thread_name_prefix=f"headrace-{name}-beside")

    def start(self, order: Order) -> Future[Outcome]:
        return _then_unpack(self._in_order.submit(self._host.make, order, self._seat))

    def call(self, method: str, arguments: Packed, *, beside: bool) -> Future[Outcome]:
        pool = self._beside if beside else self._in_order
        return _then_unpack(pool.submit(self._host.call, method, arguments))

    def stop(self) -> None:
        self._seat.session.managers.ask("worker", "deregister", self._seat.info.address)
        for pool in (self._in_order, self._beside):
            pool.shutdown(wait=False, cancel_futures=True)


class _RemoteRank:
    """A host behind a Ray actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def start(self, order: Order) -> Future[Outcome]:
        return _then_unpack(self._actor.start.remote(order).future())

    def call(self, method: str, arguments: Packed, *, beside: bool) -> Future[Outcome]:
        call = self._actor.call.options(concurrency_group="beside") if beside else self._actor.call
        return _then_unpack(call.remote(method, arguments).future())

    def stop(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        leaving = self._actor.leave.options(concurrency_group="beside").remote()
        ray.wait([leaving], timeout=STOP_TIMEOUT_S)
        ray.kill(self._actor)


class WorkerGroup(Generic[W]):
    """All ranks of a role. Any public method of the worker class, called on the group, runs on every rank:

    handle = group.method(argument)      # at once; a Handle
    results = handle.wait(timeout_s=60)  # one a rank
    """

    def __init__(self, worker_cls: type[W], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        self._worker_cls = worker_cls
        self._order = (args, kwargs or {})
        self._name = worker_cls.__name__
        self._ranks: dict[int, _RankHost] = {}
        self._log_paths: dict[int, str] = {}
        self._started: Handle | None = None
        self._session: Session | None = None
        self._launched_at = 0.0
        self._ready_at: list[float] = []

    # -- launching -----------------------------------------------------------------------------------------------

    def launch(
        self,
        cluster: Cluster | None = None,
        placement_strategy: PlacementStrategy | None = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = False,
    ) -> WorkerGroup[W]:
        """Start every rank; returns without waiting for them to be ready.

        cluster: None runs one rank in this process, without Ray.
        placement_strategy: default: one rank on each accelerator (CPU slot) of the cluster.
        max_concurrency: ordinary calls that run at once in a rank; default 1: in order.
        isolate_gpu: whether a rank sees only the devices of its placement.

        Raises:
            ConfigError: the name is taken, or the placement does not fit.
            ResourceError: the cluster has not got the devices free.
        """
        del catch_system_failure, disable_distributed_log  # both always: failures surface, logs are kept
        if self._ranks:
            raise ConfigError("name", self._name, "this group was launched already; make another with create_group")
        self._name = name or self._name
        concurrency = max_concurrency or 1
        if cluster is None:
            self._launch_inline(concurrency)
        else:
            strategy = placement_strategy or PackedPlacementStrategy(0, cluster.num_accelerators - 1)
            self._launch_remote(cluster, strategy.get_placement(cluster, isolate_gpu), concurrency)
        self._launched_at = time.monotonic()
        order = Order(_pickle_class(self._worker_cls), pack(self._order))
        calls = [self._rank_call(rank, "__init__", host.start(order)) for rank, host in self._ranks.items()]
        for call in calls:
            call.future.add_done_callback(lambda _: self._ready_at.append(time.monotonic()))
        self._started = Handle("__init__", calls)
        return self

    @property
    def startup_s(self) -> float:
        """Seconds from launch until the last rank was constructed; waits for it."""
        self.wait_ready()
        return max(self._ready_at) - self._launched_at

    def wait_ready(self, timeout_s: float | None = None) -> WorkerGroup[W]:
        """Block until every rank is constructed.

        Raises:
            WorkerError: a rank's `__init__` raised, or its process died.
        """
        assert self._started is not None, "launch the group first"
        self._started.wait(timeout_s)
        return self

    @classmethod
    def from_group_name(cls, worker_cls: type[W], group_name: str) -> WorkerGroup[W]:
        """A group that some process of the job launched.

        Raises:
            ConfigError: nobody did.
        """
        import ray

        session = sessions.current()
        infos = session.managers.ask("worker", "group", group_name)
        if not infos:
            raise ConfigError("group_name", group_name, "no worker of that group is registered; launch it first")
        group = cls(worker_cls)
        group._name = group_name
        group._session = session
        namespace = Cluster().namespace
        for info in infos:
            group._ranks[info.rank] = _RemoteRank(ray.get_actor(info.address.get_name(), namespace=namespace))
            group._log_paths[info.rank] = info.log_path
        return group

    def shutdown(self) -> None:
        """End every rank. Peers see a departure in order. Idempotent."""
        ranks, self._ranks = self._ranks, {}
        with ThreadPoolExecutor(max(1, len(ranks))) as pool:
            list(pool.map(lambda host: host.stop(), ranks.values()))
        if ranks and self._session is not None:
            self._session.group_names.discard(self._name)

    def _launch_inline(self, max_concurrency: int) -> None:
        session = sessions.current()
        boarding = _inline_boarding(self._name, session)
        info = boarding.info(session.endpoint.address)
        handler = DriverHandler(session.endpoint, session.driver, self._name, 0)
        logger = worker_logger(self._name, 0, Path(info.log_path), own_process=False, to_driver=handler)
        self._claim_name(session)
        self._add_rank(0, _InlineRank(Seat(session, info, (), logger), max_concurrency), info.log_path)

    def _launch_remote(self, cluster: Cluster, placements: list[Placement], max_concurrency: int) -> None:
        import ray

        session = sessions.of_cluster(cluster)
        self._claim_name(session)
        remote: Any = ray.remote  # its types know functions with few options only
        actor_class = remote(num_cpus=0, concurrency_groups={"beside": BESIDE_THREADS})(RemoteHost)
        for placement, strategy in zip(placements, cluster.reserve(placements), strict=True):
            boarding = _boarding(self._name, len(placements), placement, cluster, session)
            options: dict[str, Any] = {
                "name": f"{self._name}:{placement.rank}",
                "namespace": cluster.namespace,
                "max_concurrency": max_concurrency,
                "scheduling_strategy": strategy,
            }
            if placement.python_interpreter_path:
                options["runtime_env"] = {"py_executable": placement.python_interpreter_path}
            path = log_path(session.log_dir, self._name, placement.rank)
            self._add_rank(placement.rank, _RemoteRank(actor_class.options(**options).remote(boarding)), str(path))
        cluster.on_shutdown(self.shutdown)

    def _claim_name(self, session: Session) -> None:
        self._session = session
        taken = session.group_names
        if self._name in taken:
            raise ConfigError("name", self._name, "a group of that name is running; give this one another")
        taken.add(self._name)
        session.managers.ask("worker", "expect", self._name)

    def _add_rank(self, rank: int, host: _RankHost, path: str) -> None:
        self._ranks[rank] = host
        self._log_paths[rank] = path

    # -- calling -------------------------------------------------------------------------------------------------

    @property
    def worker_cls_name(self) -> str:
        return self._worker_cls.__name__

    @property
    def worker_group_name(self) -> str:
        return self._name

    @property
    def world_size(self) -> int:
        return len(self._ranks)

    @property
    def worker_info_list(self) -> list[Any]:
        """What is known of every rank; waits until all are registered."""
        assert self._session is not None, "launch the group first"
        return [self._session.find_worker(WorkerAddress(self._name, rank)) for rank in sorted(self._ranks)]

    def execute_on(self, *ranks: int) -> WorkerGroup[W]:
        """The same group narrowed to `ranks`: its calls run there only.

        Raises:
            ConfigError: a rank that the group does not have.
        """
        for rank in ranks:
            if rank not in self._ranks:
                raise ConfigError("ranks", rank, f"{self._name} has ranks 0 to {len(self._ranks) - 1}")
        narrowed: WorkerGroup[W] = WorkerGroup(self._worker_cls)
        narrowed._name = self._name
        narrowed._session = self._session
        narrowed._log_paths = self._log_paths
        narrowed._ranks = {rank: self._ranks[rank] for rank in ranks}
        return narrowed

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        function = getattr(self._worker_cls, method, None)
        if not callable(function):
            names = [name for name in dir(self._worker_cls) if not name.startswith("_")]
            raise AttributeError(f"{self.worker_cls_name} has no method '{method}': {nearest(method, names)}")
        beside = is_concurrent(function) or inspect.iscoroutinefunction(function)

        def call(*args: Any, **kwargs: Any) -> Handle:
            return self._call(method, args, kwargs, beside=beside)

        return call

    def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, beside: bool) -> Handle:
        if not self._ranks:
            raise ConfigError("group", self._name, f"launch it before calling {method}(), and not after shutdown()")
        scattered = [value for value in (*args, *kwargs.values()) if isinstance(value, Scatter)]
        for argument in scattered:
            if len(argument.values) != len(self._ranks):
                remedy = f"give {len(self._ranks)} values, one a rank of {self._name}"
                raise ConfigError(f"{method}(Scatter)", len(argument.values), remedy)
        same = None if scattered else pack((args, kwargs))
        calls = []
        for place, (rank, host) in enumerate(sorted(self._ranks.items())):
            arguments = same or pack(_pick(args, kwargs, place))
            calls.append(self._rank_call(rank, method, host.call(method, arguments, beside=beside)))
        return Handle(method, calls)

    def _rank_call(self, rank: int, method: str, future: Future[Outcome]) -> RankCall:
        return RankCall(self._name, rank, method, self._log_paths[rank], future)


def _pick(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def own(value: Any) -> Any:
        return value.values[place] if isinstance(value, Scatter) else value

    return tuple(own(value) for value in args), {name: own(value) for name, value in kwargs.items()}


def _then_unpack(packed: Future[Packed]) -> Future[Outcome]:
    outcome: Future[Outcome] = Future()

    def forward(done: Future[Packed]) -> None:
        if done.cancelled():
            outcome.set_exception(WaitTimeoutError("the group was shut down before the call began"))
            return
        error = done.exception()
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(unpack(done.result()))

    packed.add_done_callback(forward)
    return outcome


def _pickle_class(cls: type) -> bytes:
    """By reference where a worker can import the class, by value where it cannot (a script, a notebook, a test)."""
    module = sys.modules[cls.__module__]
    package = module.__name__.partition(".")[0]
    if package == "__main__" or importlib.machinery.PathFinder.find_spec(package) is not None:
        return cloudpickle.dumps(cls)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(cls)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _threads(placement: Placement) -> dict[str, str]:
    """As many numeric threads as the process has CPU slots' cores; one where it shares the node with all others."""
    return {"OMP_NUM_THREADS": str(max(1, len(placement.cores)))}


def _boarding(group: str, world_size: int, placement: Placement, cluster: Cluster, session: Session) -> Boarding:
    node = cluster.get_node_info(placement.node_rank)
    return Boarding(
        group=group,
        rank=placement.rank,
        world_size=world_size,
        node_rank=placement.node_rank,
        node_id=node.ray_id,
        node_ip=node.address,
        device_type=placement.device_type,
        device_ranks=placement.local_device_ranks,
        devices=placement.devices,
        local_rank=placement.local_rank,
        local_world_size=placement.local_world_size,
        env_vars={**_threads(placement), **placement.env_vars, **placement.visible_env},
        cores=placement.cores if cluster.config.pin_cores else (),
        cluster=cluster.snapshot(),
        log_dir=str(session.log_dir),
        token=session.endpoint.token,
        control_plane=session.control_plane,
        driver=session.driver,
        sys_path=tuple(sys.path),
    )


def _inline_boarding(group: str, session: Session) -> Boarding:
    return Boarding(
        group=group,
        rank=0,
        world_size=1,
        node_rank=session.node_rank,
        node_id=session.endpoint.address.node,
        node_ip=session.endpoint.address.host,
        device_type="cpu",
        device_ranks=(),
        devices=(),
        local_rank=0,
        local_world_size=1,
        env_vars={},
        cores=(),
        cluster=None,
        log_dir=str(session.log_dir),
        token=session.endpoint.token,
        control_plane=session.control_plane,
        driver=session.driver,
        sys_path=(),
    )
