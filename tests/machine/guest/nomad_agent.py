"""The agent's side of a device plugin of Nomad, over gRPC, with the few protobuf messages written out by field number.

Numbers are those of Nomad's plugins/base/proto/base.proto and plugins/device/proto/device.proto. What an agent does beyond the messages:
it starts the program with go-plugin's variables, reads one line of its standard output, and dials the socket that stands there.
"""

import contextlib
import subprocess
import threading
from pathlib import Path

import grpc

from cri import every, message, parse

COOKIE = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
SOCKETS = Path("/run/machine/nomad")
BASE = "/hashicorp.nomad.plugins.base.proto.BasePlugin"
DEVICE = "/hashicorp.nomad.plugins.device.DevicePlugin"


def packed(value):
    """msgpack, as Nomad packs a configuration: maps, lists, text, truth and small numbers."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xcd" + value.to_bytes(2, "big")
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value.encode())]) + value.encode()
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    return bytes([0x80 | len(value)]) + b"".join(packed(key) + packed(value[key]) for key in sorted(value))


class Reservation:
    """What a task is given: Nomad merges the answers of all of its device blocks."""

    def __init__(self, answers):
        self.environment, self.mounts, self.nodes = {}, [], []
        for answer in answers:
            given = every(answer, 1)[0]
            pairs = (parse(pair) for pair in every(given, 1))
            self.environment |= {pair[1].decode(): pair.get(2, b"").decode() for pair in pairs}
            mounts = (parse(mount) for mount in every(given, 2))
            self.mounts += [(mount[2].decode(), mount[1].decode(), "ro" if mount.get(3, 0) else "rw") for mount in mounts]
            nodes = (parse(node) for node in every(given, 3))
            self.nodes += [(node[2].decode(), node[1].decode(), node[3].decode()) for node in nodes]

    def tickets(self):
        return sorted(value.removeprefix("ticket:") for value in self.environment.values() if value.startswith("ticket:"))

    def options(self):
        """What Nomad's docker driver makes of it, for docker's command line."""
        return [*(f"--env={name}={value}" for name, value in self.environment.items()),
                *(f"--volume={source}:{target}:{mode}" for source, target, mode in self.mounts),
                *(f"--device={source}:{target}:{rules}" for source, target, rules in self.nodes)]

    def __str__(self):
        return f"environment {self.environment}, mounts {self.mounts}, nodes {self.nodes}"


class Plugin:
    """A plugin that runs, and what it has published last: groups by VENDOR/TYPE/NAME."""

    def __init__(self, settings):
        SOCKETS.mkdir(parents=True, exist_ok=True)
        environment = {"NOMAD_PLUGIN_MAGIC_COOKIE": COOKIE, "PLUGIN_PROTOCOL_VERSIONS": "2", "TMPDIR": str(SOCKETS), "PATH": "/usr/bin:/bin"}
        self.log = open("/run/machine/nomad.log", "ab")
        self.process = subprocess.Popen(["onload-nomad-device"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
        self.line = self.process.stdout.readline().decode().rstrip("\n").split("|")
        self.channel = grpc.insecure_channel(f"unix:{self.line[3]}", options=[("grpc.default_authority", "unused")])
        self.groups = {}
        self.changed = threading.Condition()
        self.info = parse(self.call(BASE, "PluginInfo", b""))
        self.call(BASE, "SetConfig", message((1, packed(settings)), (3, "v0.1.0")))

    def call(self, service, method, request):
        return self.channel.unary_unary(f"{service}/{method}")(request, timeout=20)

    def fingerprint(self):
        stream = self.channel.unary_stream(f"{DEVICE}/Fingerprint")(b"")
        threading.Thread(target=self.follow, args=[stream], daemon=True).start()
        return self

    def follow(self, stream):
        with contextlib.suppress(grpc.RpcError):  # the plugin has ended
            for answer in stream:
                groups = {}
                for group in map(parse_group, every(answer, 1)):
                    groups[group.name] = group
                with self.changed:
                    self.groups = groups
                    self.changed.notify_all()

    def wait(self, wanted=bool, seconds=30):
        """Whether what is published becomes what is wanted."""
        with self.changed:
            return self.changed.wait_for(lambda: wanted(self.groups), seconds)

    def reserve(self, *blocks):
        """What a task gets with these device blocks, each the ids of one; grpc.RpcError says why it gets nothing."""
        return Reservation([self.call(DEVICE, "Reserve", message((1, list(ids)))) for ids in blocks])

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.channel.close()

    def end(self):
        """As an agent that is done with it; its exit status, None where it does not end."""
        with contextlib.suppress(grpc.RpcError):
            self.call("/plugin.GRPCController", "Shutdown", b"")
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


class Group:
    """Devices of one name."""

    def __init__(self, name, devices):
        self.name, self.devices = name, devices

    def healthy(self):
        return [name for name, (healthy, _, _) in self.devices.items() if healthy]

    def why(self):
        """Why the first device cannot be used."""
        return next((why for _, why, _ in self.devices.values()), "")

    def __str__(self):
        return f"{self.name}: {self.devices}"


def parse_group(data):
    known = parse(data)
    devices = {}
    for device in map(parse, every(data, 4)):
        place = parse(device.get(4, b"")).get(1, b"").decode()
        devices[device[1].decode()] = (device.get(2, 0) == 1, device.get(3, b"").decode(), place)
    return Group("/".join(known[number].decode() for number in (1, 2, 3)), devices)
