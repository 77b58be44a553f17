"""What importing habana_frameworks.torch.hpu does, on a device made of host memory: this module is the device's."""

import fake_device
from torch._dynamo import register_backend

_module = fake_device.install_vendor(
    "hpu", visible="HABANA_VISIBLE_MODULES", backend="hccl", graph_class="HPUGraph", most=1
)
globals().update({name: value for name, value in vars(_module).items() if not name.startswith("__")})


@register_backend(name="hpu_backend")
def _hpu_backend(graph_module, example_inputs):  # noqa: ARG001
    return graph_module.forward
