from ferrule.agent.placement.cores import HostCores, rank_threads, shares


def test_a_machine_of_its_own_is_not_divided():
    hosts = {"a": HostCores("boot 1", tuple(range(16))), "b": HostCores("boot 2", tuple(range(16)))}
    assert shares(hosts) == {"a": 1.0, "b": 1.0}
    assert rank_threads(["a", "b"], hosts) == [16, 16]
    assert rank_threads(["a", "a", "b"], hosts) == [8, 8, 16]


def test_hosts_of_one_machine_divide_what_they_share():
    hosts = {name: HostCores("boot", (0, 1)) for name in ("a", "b")}
    assert shares(hosts) == {"a": 0.5, "b": 0.5}
    assert rank_threads(["a", "b"], hosts) == [1, 1]
    assert rank_threads(["a"], hosts) == [1]  # as if the other were a machine beside it
    three = {name: HostCores("boot", tuple(range(8))) for name in ("a", "b", "c")}
    assert rank_threads(["a", "b", "c", "c"], three) == [2, 2, 1, 1]


def test_containers_with_processors_of_their_own_share_none():
    hosts = {"a": HostCores("boot", (0, 1, 2, 3)), "b": HostCores("boot", (4, 5)), "c": HostCores("boot", (3,))}
    assert shares(hosts) == {"a": 3.5 / 4, "b": 1.0, "c": 0.5}
    assert rank_threads(["a", "b", "c"], hosts) == [3, 2, 1]


def test_a_host_that_did_not_tell_has_one_thread():
    assert rank_threads(["a", "b"], {"a": HostCores("boot", (0, 1))}) == [2, 1]
