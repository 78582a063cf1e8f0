"""Interfaces that move into pods of Kubernetes and tasks of Nomad: by a resource, a claim and a ticket; and those that a CNI plugin moves.

As in kubernetes.py and nomad.py, programs of these tests say what a kubelet, an API server and an agent of Nomad say. The daemon, the
plugin, the engines and the interfaces are real.
"""

import contextlib
import time
from pathlib import Path

import grpc

import dra
import engines
import examples
import kubernetes
import nomad
import report
from cri import OWN_NETWORK, Cri
from kubelet import Kubelet
from nomad_agent import Plugin
from parts import Kept, generate
from report import Part, check, must, run

from .lab import CONFIGURED, SPEC, discovered, held, host_facts, is_in, links_in, program_of, within

WORD = "netdev-cluster"
RESOURCE = f"{kubernetes.DOMAIN}/netdev"
# A pool whose interfaces a plugin moves, which is a resource too.
CNI_POOL = "sriov"
CNI_RESOURCE = f"{kubernetes.DOMAIN}/{CNI_POOL}"
# As the examples of Kubernetes have it, and one that nobody allows.
EXAMPLE = "dra-netdev.yaml"
CLAIMED, FORBIDDEN, ROUTED = "192.0.2.10/24", "10.1.2.3/24", "198.51.100.0/24"
# What SR-IOV CNI calls an interface in the pod.
INSIDE, BY_PLUGIN = "net1", "203.0.113.44/24"
# The newest containerd looks for plugins here, and Debian has them elsewhere.
PLUGINS = Path("/opt/cni/bin")
DOCKER = engines.Docker()


def configure(lab, more=""):
    """The first interface moves by our hook; those of the second card are left to a plugin."""
    kubernetes.configure(
        f'\n[discover]\noffer-netdevs = ["{lab.first.name}"]\n\n[netdev."{lab.first.name}"]\naddresses = ["{CONFIGURED}"]\n\n'
        f'[pools.{CNI_POOL}]\nclass = "netdev"\nmove = "cni"\nselect = {{ pf = "{lab.physical[1]}" }}\n{more}',
        f'classes = ["netdev"]\naddresses = ["192.0.2.0/24"]\nroutes = ["{ROUTED}"]\nmtu = 9000\n')
    done = generate()
    check("specifications of both are written", done.status == 0 and SPEC.exists() and all(f'"{name}"' in SPEC.read_text() for name in names(lab)), done)


def names(lab):
    """How the two are offered: a plugin is told functions."""
    return sorted([lab.first.name, lab.second.function])


@contextlib.contextmanager
def tried(what):
    """A pod that does not start is a failed check."""
    try:
        yield
    except grpc.RpcError as error:
        check(f"{what}: the pod starts", False, error.details())


def refused_beside(lab, what, client, allocated):
    """One network has an interface: another pod does not get it by the same answer, and leaves nothing."""
    before = containers_of(lab.first)
    with kubernetes.Pod(client, "beside", OWN_NETWORK) as pod:
        said = ""
        try:
            pod.add("main", allocated)
        except grpc.RpcError as error:
            said = error.details()
        check(f"{what}: a second pod is told who has it", "in use by container" in said, said)
    check(f"{what}: and the first one keeps it alone", containers_of(lab.first) == before and host_facts(lab.first.function) is None, lab.first)


def containers_of(interface):
    return sorted(lease["container"] for lease in held() if lease["name"] == interface.name)


def state_of(name):
    """What discovery says of an offered interface."""
    return next((one["state"] for one in discovered()["netdevs"] if one["device"] == name), "not offered")


def through_the_life_of_a_pod(lab, what, client, allocated, address, meanwhile):
    """Two containers of a pod share it, and it is back when none is left; the next one of the pod gets it again."""
    with kubernetes.Pod(client, "netdev", OWN_NETWORK) as pod:
        first = pod.add("first", allocated)
        lab.moves += 1
        is_in(f"{what}: a pod", pod.pid(), lab.first, address)
        second = pod.add("second", allocated)
        check(f"{what}: the second container of the pod shares it", containers_of(lab.first) == sorted([first, second]), lab.first)
        pod.end(first)
        check(f"{what}: it stays for the container that is left", containers_of(lab.first) == [second] and lab.first.name in links_in(pod.pid()), lab.first)
        pod.end(second)
        lab.is_back(f"{what}: when the pod's last container has ended")
        third = pod.add("third", allocated)
        lab.moves += 1
        is_in(f"{what}: a container that kubelet starts again", pod.pid(), lab.first, address)
        check(f"{what}: and the lease is its own", containers_of(lab.first) == [third], lab.first)
        meanwhile(pod)
    lab.is_back(f"{what}: when the pod is removed")


def by_resource(lab, runtimes, kubelet):
    """The device plugin counts it, and the hook of its specification moves it."""
    resource, function = kubelet.resources[RESOURCE], lab.first.function
    check("resource: its id is the function", resource.healthy() == [function], resource.devices)
    allocated = resource.allocate([function])
    check("resource: Allocate answers with the CDI name alone", allocated.cdi == [f"{RESOURCE}={lab.first.name}"] and not allocated.mounts + allocated.nodes, allocated)
    check("resource: PCIDEVICE_ONLOAD_DEV_NETDEV names the function", allocated.environment.get("PCIDEVICE_ONLOAD_DEV_NETDEV") == function, allocated)
    for client in runtimes:
        what = f"resource: containerd {version(client)}"
        with tried(what):
            through_the_life_of_a_pod(lab, what, client, allocated, CONFIGURED, lambda _: stays_healthy(lab, what, resource))
    held_elsewhere(lab, resource)


def version(client):
    return client.call("Version", b"")[3].decode()


def stays_healthy(lab, what, resource):
    """The scheduler knows that the pod has it."""
    function = lab.first.function
    sick = resource.wait(lambda now: now.get(function, ("gone",))[0] != "Healthy", 5)
    check(f"{what}: while the pod has it, it stays healthy", not sick, resource.devices)
    check(f"{what}: and discovery has it as held", state_of(lab.first.name) == "held", discovered()["netdevs"])
    with Kept(DOCKER, "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"netdev={lab.first.name}"]), network="netdev") as other:
        said = engines.said_by_hook(other.started)
        check(f"{what}: docker does not get it meanwhile", other.started.status != 0 and "in use by container" in said, f"{other.started}\n{said}")


def held_elsewhere(lab, resource):
    """A container of docker has it."""
    function = lab.first.function
    with Kept(DOCKER, "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"netdev={lab.first.name}"]), network="netdev") as other:
        lab.moves += 1
        check("resource: a container of docker has it", other.started.status == 0 and program_of(lab.first), f"{other.started}\n{lab.first}")
        told = resource.wait(lambda now: now.get(function, ("",))[0] == "Unhealthy")
        check("resource: what docker holds is unhealthy", told, resource.devices)
        said = kubernetes.refusal(resource, [function])
        check("resource: and Allocate names the container", "in use by container" in said, said)
    lab.is_back("resource: when docker's container is removed")
    check("resource: it is healthy then", resource.wait(lambda now: now.get(function, ("",))[0] == "Healthy"), resource.devices)


class CniPlugin:
    """What SR-IOV CNI does with an interface, between the pod and its first container, and before the pod goes."""

    def __init__(self, interface, pid):
        self.interface, self.pid = interface, pid

    def add(self):
        must("ip", "link", "set", self.interface.name, "netns", self.pid)
        for command in [["link", "set", self.interface.name, "name", INSIDE], ["address", "add", BY_PLUGIN, "dev", INSIDE], ["link", "set", INSIDE, "up"]]:
            done = within(self.pid, "ip", *command)
            if done.status:
                raise RuntimeError(f"{command}: {done}")

    def delete(self):
        """It leaves the interface as the host had it."""
        for command in [["link", "set", INSIDE, "down"], ["link", "set", INSIDE, "name", self.interface.name], ["link", "set", self.interface.name, "netns", "1"]]:
            done = within(self.pid, "ip", *command)
            if done.status:
                raise RuntimeError(f"{command}: {done}")
        must("udevadm", "settle", "--timeout=30")

    def has_it(self):
        """It is in the pod, as the plugin left it."""
        own = links_in(self.pid).get(INSIDE, {})
        return bool(own.get("up")) and BY_PLUGIN in own["addresses"] and host_facts(self.interface.function) is None


def left_to_a_plugin(lab, client, kubelet):
    """The device sets its variables, and nothing of ours touches the interface."""
    resource, function = kubelet.resources[CNI_RESOURCE], lab.second.function
    check("cni: the pool's only device goes by its function", resource.healthy() == [function], resource.devices)
    allocated = resource.allocate([function])
    check("cni: Allocate names it by the function", allocated.cdi == [f"{RESOURCE}={function}"], allocated)
    check("cni: PCIDEVICE_ONLOAD_DEV_SRIOV tells the plugin which", allocated.environment.get("PCIDEVICE_ONLOAD_DEV_SRIOV") == function, allocated)
    with kubernetes.Pod(client, "unplugged", OWN_NETWORK) as pod:
        pod.add("main", allocated)
        check("cni: without a plugin the interface stays on the host", lab.second.is_home() and not held(), lab.second)
    with kubernetes.Pod(client, "plugged", OWN_NETWORK) as pod:
        plugin = CniPlugin(lab.second, pod.pid())
        plugin.add()
        lab.moves += 1
        container = pod.add("main", allocated)
        check("cni: the pod starts with the interface that the plugin moved", plugin.has_it() and not held(), f"{lab.second}\n{links_in(plugin.pid)}")
        _, text = kubernetes.asked(client, container, "env=ONLOAD_CTK_", "env=PCIDEVICE_ONLOAD_DEV_SRIOV=")
        told = {line for line in text.splitlines() if line.startswith("env ")}
        variable = "".join(each if each.isalnum() else "_" for each in function).upper()
        wanted = {f"env ONLOAD_CTK_NETDEV_{variable}={function}", f"env PCIDEVICE_ONLOAD_DEV_SRIOV={function}"}
        check("cni: its variables say which, and it has no others of ours", told == wanted, text)
        while_the_plugin_has_it(lab, plugin, resource)
        pod.end(container)
        check("cni: at the container's end it stays with the plugin", plugin.has_it(), f"{lab.second}\n{links_in(plugin.pid)}")
        plugin.delete()
    lab.is_back("cni: when the plugin has brought it back")


def while_the_plugin_has_it(lab, plugin, resource):
    function = lab.second.function
    done = generate()
    check("cni: its specification stays while the plugin has it", done.status == 0 and f'"{function}"' in SPEC.read_text(), done)
    check("cni: discovery has it as away", state_of(function) == "away", discovered()["netdevs"])
    sick = resource.wait(lambda now: now.get(function, ("gone",))[0] != "Healthy", 5)
    check("cni: and kubelet is offered it as before", not sick, resource.devices)
    done = run("systemctl", "start", "onload-restore.service")
    check("cni: the unit that brings interfaces back leaves it", done.status == 0 and plugin.has_it(), f"{done}\n{lab.second}")


def with_resources(lab, runtimes):
    kubelet = Kubelet()
    configure(lab)
    kubelet.start()
    kubernetes.start_daemon()
    try:
        found = kubelet.wait([RESOURCE, CNI_RESOURCE])
        if not check("both resources are registered", len(found) == 2, f"{sorted(kubelet.resources)}\n{kubernetes.journal()}"):
            return
        by_resource(lab, runtimes, kubelet)
        with tried("cni"):
            left_to_a_plugin(lab, runtimes[0], kubelet)
    finally:
        run("systemctl", "stop", f"{kubernetes.UNIT}.service")
        kubelet.end()


def address(wanted):
    """What a claim says of its interface, as the API server keeps it."""
    return {"requests": ["r0"], "opaque": {"driver": "onload.dev", "parameters": {"address": wanted}}}


def by_claim(lab, client, driver):
    """A claim with an address of its own: it replaces the one of the operator's."""
    what = f"claim: containerd {version(client)}"
    dra.allocate("addressed", ("netdev", lab.first.name), config=[address(CLAIMED)])
    given, why = driver.prepare("addressed")
    of_claim = f"{dra.CLAIM_KIND}=uid-of-addressed"
    wanted = [f"{of_claim}.netdev.{lab.first.name}", f"{RESOURCE}={lab.first.name}", f"{of_claim}.request.r0"]
    if not check(f"{what}: the answer names the claim's device, the interface and the file for the pod", given == {"r0": wanted}, f"{given} {why}"):
        return
    def meanwhile(pod):
        links = links_in(pod.pid())
        check(f"{what}: the address of the operator's is not set", CONFIGURED not in links.get(lab.first.name, {}).get("addresses", []), links)
        refused_beside(lab, what, client, dra.Given(given))
        other_claims(lab, what, driver)

    with tried(what):
        through_the_life_of_a_pod(lab, what, client, dra.Given(given), CLAIMED, meanwhile)
    check(f"{what}: Unprepare leaves nothing", driver.unprepare("addressed") == "" and not dra.files_of("addressed"), dra.files_of("addressed"))


def other_claims(lab, what, driver):
    dra.allocate("other", ("netdev", lab.first.name))
    other, why = driver.prepare("other")
    check(f"{what}: another claim is not prepared, and its event names the holder", not other and "in use by container" in why, f"{other} {why}")
    time.sleep(3)  # a taint would come by then
    found = dra.taints("netdev")
    check(f"{what}: the device of a claim's pod has no taint", found.get(lab.first.name) == [], found)


def without_parameters(lab, client, driver):
    dra.allocate("plain", ("netdev", lab.first.name))
    given, why = driver.prepare("plain")
    with tried("claim: without parameters"), kubernetes.Pod(client, "plain", OWN_NETWORK) as pod:
        pod.add("main", dra.Given(given))
        lab.moves += 1
        is_in("claim: without parameters", pod.pid(), lab.first, CONFIGURED)
        refused_beside(lab, "claim: without parameters", client, dra.Given(given))
    lab.is_back("claim: without parameters")
    check("claim: without parameters: Unprepare leaves nothing", driver.unprepare("plain") == "" and not dra.files_of("plain"), f"{why} {dra.files_of('plain')}")


def not_allowed(lab, driver):
    """Addresses that a claim may not set."""
    refusals = [("forbidden", "an address that is not allowed", lab.first, FORBIDDEN, f"parameter address sets {FORBIDDEN}, which is in none of the networks"),
                ("plugin", "an address for what a CNI plugin moves", lab.second, CLAIMED, f"parameter address: a CNI plugin moves {lab.second.function}")]
    for name, what, interface, wanted, words in refusals:
        dra.allocate(name, ("netdev", published_as(interface)), config=[address(wanted)])
        given, why = driver.prepare(name)
        check(f"claim: {what} is refused by name", not given and words in why, f"{given} {why}")
        check(f"claim: {what}: no file is left, and nothing has moved", not dra.files_of(name) and lab.first.is_home() and lab.second.is_home(), dra.files_of(name))


def published_as(interface):
    """The name that the slices have of it, which its function tells."""
    device = dra.devices("netdev", dra.PCI)[interface.function]
    return next(name for name, other in dra.devices("netdev").items() if other == device)


def of_the_example(lab, client, driver):
    """The claim and the container of packaging/kubernetes/examples: requests have the names that these tests give them."""
    claim, = examples.documents(EXAMPLE, "ResourceClaim")
    said = [{**one, "requests": ["r0"]} for one in claim["spec"]["devices"]["config"]]
    dra.allocate("example", ("netdev", lab.first.name), config=said)
    given, why = driver.prepare("example")
    ids = dra.Given(given).cdi
    place = examples.Place(namespaces=OWN_NETWORK)
    with tried(f"claim: {EXAMPLE}"), examples.runs(client, EXAMPLE, "debian13", {}, place, claimed=ids):
        lab.moves += 1
        wanted = ["feed:", CLAIMED.partition("/")[0], ROUTED.partition("/")[0]]
        check(f"claim: {EXAMPLE} shows the interface as the claim calls it, its address and its route", examples.says(EXAMPLE, wanted, 30), f"{why}\n{examples.output(EXAMPLE)}")
    lab.is_back(f"claim: {EXAMPLE}")
    check(f"claim: {EXAMPLE}: Unprepare leaves nothing", driver.unprepare("example") == "" and not dra.files_of("example"), dra.files_of("example"))


def with_claims(lab, runtimes):
    configure(lab, '\n[kubernetes.offer]\nnetdev = "dra"\n')
    with dra.api_server():
        dra.start()
        driver = dra.Driver()
        if not check("claim: slices of the class are written", dra.published(["netdev"]), f"{dra.Cluster.slices}\n{kubernetes.journal()}"):
            return
        both = sorted(one.function for one in lab.both)
        check("claim: they have both interfaces", sorted(dra.devices("netdev", dra.PCI)) == both, dra.Cluster.slices)
        for client in runtimes:
            by_claim(lab, client, driver)
        without_parameters(lab, runtimes[0], driver)
        not_allowed(lab, driver)
        of_the_example(lab, runtimes[0], driver)


def by_ticket(lab):
    """Nomad carries neither hooks nor interfaces: the runtime gives what the ticket says."""
    device, name = f"netdev={lab.first.name}", f"netdev-{lab.first.name}-0"
    plugin = Plugin(nomad.WORD).fingerprint()
    try:
        if not check("ticket: the interface is a device", plugin.wait(lambda groups: nomad.device(name, groups)[0]), plugin.groups):
            return
        _, _, place = nomad.device(name, plugin.groups)
        check("ticket: the scheduler knows where it is", place == lab.first.function, place)
        given = plugin.reserve([name])
        check("ticket: Reserve answers with a ticket alone", len(given.tickets()) == 1 and not given.mounts + given.nodes, given)
        with nomad.Task("plain", given, runtime=None, network="netdev") as task:
            check("ticket: without our runtime a task starts, and nothing moves", task.started.status == 0 and lab.first.is_home(), f"{task.started}\n{lab.first}")
        task_has_it(lab, plugin, name, device, given)
        with nomad.Task("copy", given, network="netdev") as copy:
            check("ticket: another task's copy is refused when its own is over", copy.is_refused("valid only for the task that used it first"), copy.started)
        check("ticket: nothing has moved for a copy", lab.first.is_home() and not held(), lab.first)
    finally:
        plugin.end()


def task_has_it(lab, plugin, name, device, given):
    with nomad.Task("netdev", given, network="netdev") as task:
        if check("ticket: the task starts", task.started.status == 0, f"{task.started}\n{given}"):
            lab.moves += 1
            is_in("ticket: a task", task.pid(), lab.first, CONFIGURED)
            nomad.is_leased(device, task, given, "ticket: a task")
            sick = plugin.wait(lambda groups: not nomad.device(name, groups)[0], 5)
            check("ticket: while the task has it, it stays healthy", not sick, plugin.groups)
            with nomad.Task("copy", given, network="netdev") as copy:
                check("ticket: a copy is refused while its task runs", copy.is_refused("in use by container"), copy.started)
            done = run("docker", "restart", "-t", "0", task.name, timeout=90)
            lab.moves += 1
            check("ticket: the task starts again with the same ticket", done.status == 0, done)
            is_in("ticket: after a restart", task.pid(), lab.first, CONFIGURED)
            nomad.is_leased(device, task, given, "ticket: after a restart")
    lab.is_back("ticket: when the task is removed")


def without_the_word():
    """Nobody says that tasks run with our runtime, so nobody could move anything."""
    plugin = Plugin({}).fingerprint()
    plugin.wait()
    check("ticket: without the operator's word no interface is published", not any("/netdev/" in name for name in plugin.groups), plugin.groups)
    plugin.end()


@contextlib.contextmanager
def containerds():
    """The guest's own and the newest one, which finds the plugins of the pods' networks."""
    PLUGINS.parent.mkdir(parents=True, exist_ok=True)
    PLUGINS.symlink_to("/usr/lib/cni")
    must("systemctl", "start", "containerd2", timeout=120)
    try:
        yield [Cri(kubernetes.OLDER, kubernetes.PARENT), Cri(kubernetes.NEWEST, kubernetes.PARENT)]
    finally:
        must("systemctl", "stop", "containerd2", timeout=120)
        PLUGINS.unlink()


def parts(lab, on):
    if not on(WORD):
        return
    report.prefix = "netdev: "
    try:
        with containerds() as runtimes:
            with Part("netdev: resources of Kubernetes, and a CNI plugin"):
                with_resources(lab, runtimes)
            with Part("netdev: claims of Kubernetes"):
                with_claims(lab, runtimes)
        with Part("netdev: tickets of Nomad"):
            configure(lab)
            by_ticket(lab)
            without_the_word()
    finally:
        report.prefix = ""
        lab.configure()
        generate()
