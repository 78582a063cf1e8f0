"""A client for as much of the CRI as the tests need, over gRPC, with the few protobuf messages written out by field number.

Numbers are those of k8s.io/cri-api pkg/apis/runtime/v1/api.proto.
"""

import grpc

SOCKET = "unix:///run/containerd/containerd.sock"
# NamespaceMode 2 is the host's, 1 the container's own. NamespaceOption: 1 network, 2 pid.
NAMESPACES = [(1, 2), (2, 1)]
# A network of the pod's own, which a CNI plugin makes.
OWN_NETWORK = [(1, 1), (2, 1)]


def varint(number):
    out = bytearray()
    while True:
        low, number = number & 0x7F, number >> 7
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def message(*fields):
    """Fields as (number, value): text, bytes (a nested message), an int, a list (repeated) or a dict (map of strings)."""
    out = b""
    for number, value in fields:
        if isinstance(value, dict):
            out += message(*((number, message((1, key), (2, text))) for key, text in sorted(value.items())))
        elif isinstance(value, (list, tuple)):
            out += message(*((number, item) for item in value))
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def fields(data):
    """Each field as it comes, with its number: an int, or bytes."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        elif key & 7 == 2:
            size = number()
            yield key >> 3, data[at:at + size]
            at += size
        else:
            raise ValueError(f"wire type {key & 7} is not one that the CRI or a device plugin uses")


def parse(data):
    """The last value of each field."""
    return dict(fields(data))


def every(data, wanted):
    """All values of a repeated field."""
    return [value for number, value in fields(data) if number == wanted]


class Cri:
    """One pod of one container at a time, on the host's network."""

    def __init__(self, socket=SOCKET, parent="system.slice"):
        self.channel = grpc.insecure_channel(socket)
        self.parent = parent

    def call(self, method, request, timeout=60):
        send = self.channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
        return parse(send(request, timeout=timeout))

    def run(self, name, image, argv, annotations, devices, handler, log_dir, read_only=False, privileged=False,
            namespaces=NAMESPACES):
        """The ids of pod and container. grpc.RpcError says why there is none; the pod is gone then.

        Annotations are the pod's: a kubelet gives none of them to the container, containerd hands them on.
        """
        sandbox = self.sandbox(name, annotations, log_dir, privileged, namespaces)
        pod = self.call("RunPodSandbox", message((1, sandbox), (2, handler)))[1].decode()
        try:
            return pod, self.add(pod, sandbox, name, image, argv, devices, read_only, privileged)
        except grpc.RpcError:
            self.remove(pod)
            raise

    def sandbox(self, name, annotations, log_dir, privileged=False, namespaces=NAMESPACES):
        """The configuration of a pod, which a kubelet repeats for each of its containers."""
        return message(
            (1, message((1, name), (2, name), (3, "default"))), (3, log_dir), (7, annotations),
            # LinuxSandboxSecurityContext: 1 namespace_options, 6 privileged.
            (8, message((1, self.parent), (2, message((1, message(*namespaces)), (6, int(privileged)))))))

    def add(self, pod, sandbox, name, image, argv, devices=(), read_only=False, privileged=False, environment=None):
        """A container in a pod that runs; its id."""
        # LinuxContainerSecurityContext: 2 privileged, 3 namespace_options, 7 readonly_rootfs.
        security = message((2, int(privileged)), (3, message(*NAMESPACES)), (7, int(read_only)))
        config = message(
            (1, message((1, name))), (2, message((1, image))), (3, list(argv)), (6, environment or {}), (11, f"{name}.log"),
            (15, message((2, security))), (17, [message((1, device)) for device in devices]))
        container = self.call("CreateContainer", message((1, pod), (2, config), (3, sandbox)))[1].decode()
        self.call("StartContainer", message((1, container)))
        return container

    def execute(self, container, argv):
        """Exit status and output."""
        answer = self.call("ExecSync", message((1, container), (2, argv), (3, 30)))
        return answer.get(3, 0), answer.get(1, b"").decode(errors="replace"), answer.get(2, b"").decode(errors="replace")

    def stop(self, container):
        """At once: 1 container_id, 2 timeout in seconds."""
        self.call("StopContainer", message((1, container), (2, 0)))

    def remove(self, pod):
        """As a kubelet does, which stops a pod again where that fails: containerd's shim may go just then, of a container
        that ends by itself ("ttrpc: closed")."""
        try:
            self.call("StopPodSandbox", message((1, pod)))
        except grpc.RpcError:
            self.call("StopPodSandbox", message((1, pod)))
        self.call("RemovePodSandbox", message((1, pod)))
