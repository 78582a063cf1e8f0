"""The kubelet's side of the device plugin API, over gRPC, with the few protobuf messages written out by field number.

Numbers are those of k8s.io/kubelet pkg/apis/deviceplugin/v1beta1/api.proto. What a kubelet does beyond the messages: it empties
the directory when it starts, and dials back while it answers Register, with the authority "localhost".
"""

import concurrent.futures
import contextlib
import threading
import time
from pathlib import Path

import grpc

from cri import every, message, parse

DIRECTORY = Path("/var/lib/kubelet/device-plugins")
SOCKET = DIRECTORY / "kubelet.sock"


class Allocated:
    """What one container is given."""

    def __init__(self, answer):
        entry = every(answer, 1)[0]
        pairs = (parse(pair) for pair in every(entry, 1))
        self.environment = {pair[1].decode(): pair.get(2, b"").decode() for pair in pairs}
        self.mounts, self.nodes = every(entry, 2), every(entry, 3)
        self.cdi = [parse(device)[1].decode() for device in every(entry, 5)]

    def __str__(self):
        return f"CDI {self.cdi}, environment {self.environment}, {len(self.mounts)} mounts, {len(self.nodes)} nodes"


class Resource:
    """A resource that a plugin has registered."""

    def __init__(self, request):
        self.version, endpoint, self.name = (parse(request)[number].decode() for number in (1, 2, 3))
        self.endpoint = DIRECTORY / endpoint
        self.channel = grpc.insecure_channel(f"unix:{self.endpoint}", options=[("grpc.default_authority", "localhost")])
        self.devices = {}
        self.lists = 0
        self.changed = threading.Condition()
        options = parse(self.call("GetDevicePluginOptions", b""))
        self.has_preferred = options.get(2, 0) == 1
        self.stream = self.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
        threading.Thread(target=self.follow, daemon=True).start()

    def call(self, method, request):
        return self.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=10)

    def follow(self):
        with contextlib.suppress(grpc.RpcError):  # the plugin has ended
            for answer in self.stream:
                devices = {}
                for device in every(answer, 1):
                    known = parse(device)
                    nodes = [parse(node).get(1, 0) for node in every(known.get(3, b""), 1)]
                    devices[known[1].decode()] = (known[2].decode(), nodes)
                with self.changed:
                    self.devices, self.lists = devices, self.lists + 1
                    self.changed.notify_all()

    def wait(self, wanted, seconds=20):
        """Whether the devices become what is wanted."""
        with self.changed:
            return self.changed.wait_for(lambda: wanted(self.devices), seconds)

    def healthy(self):
        return sorted(name for name, (health, _) in self.devices.items() if health == "Healthy")

    def allocate(self, ids):
        """What the plugin gives for these ids; grpc.RpcError says why it gives nothing."""
        return Allocated(self.call("Allocate", message((1, message((1, list(ids)))))))

    def preferred(self, available, size, needed=()):
        """Which of these the plugin would take."""
        request = message((1, message((1, list(available)), (2, list(needed)), (3, size))))
        return [each.decode() for each in every(every(self.call("GetPreferredAllocation", request), 1)[0], 1)]


class Kubelet(grpc.GenericRpcHandler):
    """Waits for plugins."""

    def __init__(self):
        self.server = None
        self.resources = {}
        self.registered = threading.Condition()

    def service(self, details):
        if details.method == "/v1beta1.Registration/Register":
            return grpc.unary_unary_rpc_method_handler(self.register)
        return None

    def register(self, request, _context):
        resource = Resource(request)
        with self.registered:
            self.resources[resource.name] = resource
            self.registered.notify_all()
        return b""

    def start(self):
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        for path in DIRECTORY.iterdir():
            # A plugin may remove its own meanwhile.
            if path.is_socket():
                path.unlink(missing_ok=True)
        self.resources = {}
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), handlers=[self])
        self.server.add_insecure_port(f"unix:{SOCKET}")
        self.server.start()

    def end(self):
        """As by kill -9: the socket stays."""
        for resource in self.resources.values():
            resource.channel.close()
        self.server.stop(0).wait()

    def wait(self, names, seconds=30):
        """The resources of these names, once each has a list; none of those that do not come."""
        deadline = time.monotonic() + seconds
        with self.registered:
            self.registered.wait_for(lambda: set(names) <= set(self.resources), seconds)
            found = {name: self.resources[name] for name in names if name in self.resources}
        return {name: one for name, one in found.items() if one.wait(bool, max(0.1, deadline - time.monotonic()))}
