"""Graphs: recorded work that can be run again."""

from __future__ import annotations

from accelerator.testing.model import Ability, Subject, expect_equal, needs, unless_unsupported


@needs(Ability.GRAPHS, Ability.TENSORS)
def graphs_replay(subject: Subject) -> str | None:
    """A captured graph computes the right values when it is replayed, also from changed inputs."""
    accelerator = subject.accelerator
    graph = unless_unsupported(accelerator.create_graph)
    data = subject.tensor([1.0, 2.0])
    warm = data * 2 + 1  # libraries that a capture may not start
    accelerator.synchronize()
    with accelerator.capture_to_graph(graph):
        result = data * 2 + 1
    accelerator.replay_graph(graph)
    accelerator.synchronize()
    expect_equal("values after a replay", result.cpu().tolist(), warm.cpu().tolist())
    data.fill_(3.0)
    accelerator.replay_graph(graph)
    accelerator.synchronize()
    if accelerator.is_synchronized_device() and result.cpu().tolist() == warm.cpu().tolist():
        return "captured work runs at once; the graph records nothing"
    expect_equal("values after a replay with other inputs", result.cpu().tolist(), [7.0, 7.0])
    return None


@needs(Ability.GRAPHS)
def graphs_take_pool_and_stream(subject: Subject) -> None:
    """capture_to_graph() takes the keywords pool and stream."""
    graph = unless_unsupported(subject.accelerator.create_graph)
    with subject.accelerator.capture_to_graph(graph, pool=None, stream=None):
        pass


CHECKS = (graphs_replay, graphs_take_pool_and_stream)
