"""The S3 server's disk is full: services wait with that reason, and end with it at their deadline.

The server's files may not grow any more (RLIMIT_FSIZE), which needs no rights and no mount. SeaweedFS then does what
it does on a full file system: it reads and lists, answers 500 InternalError to each write, and keeps nothing of it.
"""

from __future__ import annotations

import resource
import time

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.events import GroupMoved
from rolloutpipe_core.local.seaweed import start_seaweedfs
from rolloutpipe_core.local.servers import LocalServers

from ...e2e.conftest import Process
from .conftest import Run, check_complete

ROUNDS = 3
STORE_S = 10


def limit_files(pid: int, most: int) -> None:
    """No write of the process may reach behind so many bytes of a file."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))


def waits_for_space(run: Run) -> bool:
    told = [row["waiting_for"] for row in run.reader.services()]
    return any(text.startswith("object store (put") and "InternalError" in text for text in told)


def announced(run: Run) -> int:
    return sum(
        isinstance(event, GroupMoved) and event.after == GroupState.QUEUED and event.before == GroupState.MATERIALIZED
        for event in run.reader.events()
    )


def test_a_full_disk_is_waited_for_and_past_the_deadline_a_restart_goes_on(
    own_run: Run, own_servers: LocalServers
) -> None:
    run, pid = own_run, own_servers.s3.record.pid
    # The partner of the one that ends is still there when it is back.
    deadlines = {"store_s": STORE_S, "group_s": 300, "publish_s": 300}
    run.configure(schedule={"rounds": ROUNDS}, leases={"heartbeat_s": 0.2}, deadlines=deadlines)
    services = {role: run.start(role) for role in ("trainer", "rollout")}
    run.wait_for(lambda: announced(run) > 0)

    limit_files(pid, 1)
    run.wait_for(lambda: waits_for_space(run))
    limit_files(pid, resource.RLIM_INFINITY)
    run.wait_for(lambda: run.reader.run_state()["version"] == "1")

    limit_files(pid, 1)
    run.wait_for(lambda: waits_for_space(run))
    before = announced(run)
    ended = first_to_end(services)
    assert announced(run) == before, "nothing is announced that is not stored"
    assert services[ended].finish() == 6, services[ended].text()
    told = services[ended].text()
    assert "ends: the object store stayed away: put " in told
    assert "InternalError" in told and f"an answer within {STORE_S} s" in told
    assert "Traceback" not in told

    limit_files(pid, resource.RLIM_INFINITY)
    services[ended] = run.start(ended)
    for service in services.values():
        service.succeed()
    check_complete(run, ROUNDS)
    check_after_kill(run, own_servers)


def first_to_end(services: dict[str, Process]) -> str:
    """The role whose upload could not be made; its partner waits for it meanwhile."""
    ended: list[str] = []
    while not ended:
        time.sleep(0.05)
        ended = [role for role, service in services.items() if service.popen.poll() is not None]
    return ended[0]


def check_after_kill(run: Run, servers: LocalServers) -> None:
    """What was accepted before, during and after is on the disk."""
    s3, state = servers.connections.s3, servers.directory / ".rolloutpipe"
    servers.s3.kill()
    log, ports = state / "logs" / "seaweedfs.log", servers.s3.record.ports
    server = start_seaweedfs(
        state / "seaweedfs", log, str(s3.access_key), str(s3.secret_key), die_with_parent=True, ports=ports
    )
    check_complete(run, ROUNDS)
    server.kill()
