from rolloutpipe_core.observe.status import Housekeeping, build_status, head_of_line, reward_so_far, service_status

NOW = 100_000
TRAINER = {
    "role": "trainer",
    "name": "trainer-x",
    "host": "a",
    "pid": "7",
    "doing": "round 3",
    "waiting_for": "a group of round 3",
    "waiting_since_ms": "98500",
    "deadline_ms": "398500",
    "seen_ms": "99800",
}
WORKER = {
    **TRAINER,
    "role": "rollout",
    "name": "worker-a",
    "waiting_for": "",
    "waiting_since_ms": "",
    "deadline_ms": "",
}
RUN = {"state": "active", "version": "3", "version_sha": "ab" * 32, "lineage": "1", "trainer_epoch": "2", "round": "3"}
ROUND = {
    "state": "generating",
    "schedule": "cgp",
    "generation": "1",
    "n_deferred": "1",
    "n_queued": "2",
    "updates_sealed": "4",
}


def group(index, state, **facts):
    return {"id": f"r000003-g{index:04d}", "state": state, "since_ms": "99000", **facts}


def status(run=RUN, round=ROUND, groups=(), services=(TRAINER, WORKER)):
    return build_status("walk", run, round, groups, services, fifo_depth=5, pending=2, now_ms=NOW)


def test_what_the_run_says():
    seen = status()
    assert (seen.state, seen.version, seen.round, seen.round_state, seen.updates_sealed) == (
        "active",
        3,
        3,
        "generating",
        4,
    )
    assert (seen.fifo_depth, seen.pending, seen.lineage, seen.trainer_epoch) == (5, 2, 1, 2)
    assert (seen.groups["deferred"], seen.groups["queued"], seen.groups["trained"]) == (1, 2, 0)


def test_a_run_that_was_never_prepared():
    seen = status(run={}, round={}, services=())
    assert (seen.state, seen.version, seen.round, seen.reward_mean) == ("", None, None, None)
    assert seen.missing_roles == ("rollout", "trainer")


def test_a_wait_names_its_cause_age_and_deadline():
    service = service_status(TRAINER, NOW)
    assert (service.waiting_for, service.waiting_s, service.deadline_in_s) == ("a group of round 3", 1.5, 298.5)
    assert (service.seen_s, service.stale) == (0.2, False)


def test_a_service_that_works_waits_for_nothing():
    service = service_status(WORKER, NOW)
    assert (service.waiting_for, service.waiting_s, service.deadline_in_s) == ("", None, None)


def test_a_stale_service_does_not_hold_its_role():
    seen = status(services=({**TRAINER, "seen_ms": "94000"}, WORKER))
    assert [service.stale for service in seen.services] == [True, False]
    assert seen.missing_roles == ("trainer",)


def test_clocks_that_differ_give_no_negative_age():
    assert service_status({**TRAINER, "seen_ms": "100500"}, NOW).seen_s == 0


def test_reward_counts_scored_groups_only():
    groups = [
        group(0, "trained", reward_mean="1.0"),
        group(1, "queued", reward_mean="0.5"),
        group(2, "filtered", reward_mean="0.0"),
        group(3, "deferred", reward_mean="1.0"),  # left by an attempt that was lost
        group(4, "admitted"),
    ]
    assert reward_so_far(groups) == 0.5


def test_head_of_line_blocks_only_ready_groups_behind_it():
    waiting = [group(0, "claimed"), group(1, "failed"), group(2, "admitted", worker="worker-a"), group(3, "queued")]
    blocker = head_of_line(waiting, NOW)
    assert (blocker.group, blocker.state, blocker.worker, blocker.since_s) == (
        "r000003-g0002",
        "admitted",
        "worker-a",
        1.0,
    )
    assert head_of_line([group(0, "queued"), group(1, "admitted")], NOW) is None
    assert head_of_line([group(0, "admitted"), group(1, "deferred")], NOW) is None
    assert head_of_line([group(0, "trained")], NOW) is None


def test_head_of_line_is_named_under_submission_order_alone():
    groups = [group(0, "admitted", worker="worker-a"), group(1, "queued")]
    assert status(groups=groups).head_of_line is None
    assert status(round={**ROUND, "order": "submission"}, groups=groups).head_of_line.group == "r000003-g0000"


def test_the_housekeepers_last_pass_is_told():
    assert status().housekeeping is None
    kept = {"housekeeping_ms": str(NOW - 1500), "housekeeping_error": ""}
    seen = status(run={**RUN, **kept, "deleted_objects": "7", "deleted_bytes": "900"}).housekeeping
    assert seen == Housekeeping(last_s=1.5, error="", deleted_objects=7, deleted_bytes=900)
    failed = status(run={**RUN, **kept, "housekeeping_error": "no such bucket"}).housekeeping
    assert failed == Housekeeping(last_s=1.5, error="no such bucket", deleted_objects=0, deleted_bytes=0)


def test_json_is_plain():
    plain = status().to_json()
    assert plain["services"][0]["waiting_for"] == "a group of round 3"
    assert plain["groups"]["queued"] == 2
