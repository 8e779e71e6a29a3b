"""Every exception a user can see, in one hierarchy.

A message says what happened, where (rank, host, file, flag) and how to cure it. The command line prints
the message and exits with ``exit_code``; the HTTP API puts it into its error object with ``code``.
"""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """First line of a library's error, without the paragraphs of advice that often follow."""
    return next(iter(str(error).strip().splitlines()), repr(error))


class FerruleError(Exception):
    """Base of all errors that Ferrule raises on purpose."""

    exit_code = 1
    code = "ferrule_error"


class ConfigError(FerruleError):
    """A flag, environment variable or file has a value that cannot be used."""

    exit_code = 2
    code = "config_error"


class ModelError(FerruleError):
    """The model's files are missing, damaged or of a kind that Ferrule does not run."""

    exit_code = 3
    code = "model_error"


class PlanError(FerruleError):
    """The model cannot be split as asked. ``needed`` and ``available`` say by how much, where that is a number."""

    exit_code = 4
    code = "plan_error"

    def __init__(self, message: str, *, needed: int | None = None, available: int | None = None) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class FabricError(FerruleError):
    """Moving data between ranks failed; the group is closed and cannot be used again."""

    exit_code = 5
    code = "fabric_error"


class RendezvousError(FabricError):
    """The ranks could not find each other and form a group."""

    code = "rendezvous_error"


class AuthError(FabricError):
    """A peer did not prove that it holds the cluster's key."""

    code = "auth_error"


class FabricTimeout(FabricError):
    """An operation did not finish before its deadline although every peer seems alive."""

    code = "fabric_timeout"


class PeerLost(FabricError):
    """A rank of the group died or its connection closed.

    ``rank``: the lost rank in the group that noticed; ``host``: where it ran; ``path``: the one on which the
    loss was noticed (such as ``tcp 127.0.0.1:40132``); ``seconds``: how long this rank had waited in the operation.
    ``happened``: the text without the ``advice`` to the program that made the group.
    """

    code = "peer_lost"

    def __init__(self, message: str, *, rank: int, host: str, path: str, seconds: float, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.happened = message
        self.rank = rank
        self.host = host
        self.path = path
        self.seconds = seconds


class EngineError(FerruleError):
    """The engine could not start, or a rank of a running model failed."""

    exit_code = 6
    code = "engine_error"


class ModelUnavailable(EngineError):
    """The model cannot be run now, but may be later: what there is cannot hold it, or it is being restarted.

    ``retry_after``: seconds after which it makes sense to ask again.
    """

    code = "model_unavailable"

    def __init__(self, message: str, *, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class InstallError(EngineError):
    """An engine of others could not be installed beside Ferrule, or what was installed does not work."""

    code = "install_error"


class LabError(FerruleError):
    """The lab lacks something of this machine, or what it emulates did not start or end as it should."""

    exit_code = 7
    code = "lab_error"


class GuestError(LabError):
    """A guest of the VM lab did not do its work: it crashed, hung, or its script failed. ``console``: all it said."""

    code = "guest_error"

    def __init__(self, message: str, *, console: str = "") -> None:
        super().__init__(message)
        self.console = console


class LinkError(FerruleError):
    """A record of a machine's cables cannot be read or written, or a link does not do what it was asked to."""

    exit_code = 8
    code = "link_error"


class RequestError(FerruleError):
    """A request asks for something that cannot be done. ``param`` names the field at fault, where there is one."""

    exit_code = 2
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class ClusterError(FerruleError):
    """The machines of a cluster did not find each other, or one of them did not do what it was asked to."""

    exit_code = 9
    code = "cluster_error"


class LaunchError(FerruleError):
    """A host of a job cannot be reached, refuses to start its ranks, or was lost."""

    exit_code = 10
    code = "launch_error"


class DriverError(FerruleError):
    """The kernel module for RDMA over USB4 cannot be installed or removed, or RDMA was demanded and is not there."""

    exit_code = 11
    code = "driver_error"
