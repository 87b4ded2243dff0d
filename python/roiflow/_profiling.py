"""Execution times of the nodes of a model."""

from __future__ import annotations

import enum
from datetime import timedelta

__all__ = ["ProfilingInfo"]


class ProfilingInfo:
    """The execution times of one node of a model in the latest run."""

    class Status(enum.Enum):
        """Whether a node was executed."""

        NOT_RUN = 0
        OPTIMIZED_OUT = 1
        EXECUTED = 2

    __slots__ = ("cpu_time", "exec_type", "node_name", "node_type", "real_time", "status")

    def __init__(
        self, node_name: str, node_type: str, exec_type: str, real_time: timedelta, cpu_time: timedelta, status: ProfilingInfo.Status
    ) -> None:
        self.node_name = node_name
        self.node_type = node_type
        self.exec_type = exec_type
        self.real_time = real_time
        self.cpu_time = cpu_time
        self.status = status

    def __repr__(self) -> str:
        return f"<ProfilingInfo: {self.node_name!r} {self.node_type} {self.status.name} {self.real_time}>"
