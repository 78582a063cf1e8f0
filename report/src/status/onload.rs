//! Verdicts about Onload in a container: whether its programs have the library, an interface and a stack, or why not.
//! Like all verdicts it looks at nothing.

use onload_core::config::CdiConfig;
use onload_sys::text::{join_first, quote_for_shell};

use super::cgroup::ContainerEngine;
use super::facts::{
    ContainerFacts, KernelSocketCause, KernelSocketProgram, NodeState, PreloadEnvironment,
    ProgramLinkage,
};
use super::kernel_log::StackError;
use super::process::{ContainerProcess, LibraryMapping};
use super::stack_users::StackUser;
use super::state::{HostFacts, Verdict, VerdictState};

/// The effect on programs if the driver rejects a library of another build (ELIBACC). Seen with a real Onload
/// (ef17681d).
pub(crate) const OTHER_BUILD_EFFECT: &str =
    "run on the kernel's sockets or, with EF_NO_FAIL=0, get no TCP or UDP socket";
/// The end of most remedies for a running container.
pub const RESTART_REMEDY: &str = "start it again";
const MAX_SHOWN: usize = 3;

pub(super) fn onload_verdict(facts: &ContainerFacts, host: HostFacts) -> Option<Verdict> {
    let has_onload = facts.has_node("/dev/onload") || facts.maps_library();
    let is_broken = facts
        .root
        .nodes
        .iter()
        .any(|node| node.path.starts_with("/dev/onload") && node.state != NodeState::Good);
    if !has_onload || is_broken {
        return None;
    }
    if !facts.maps_library() {
        return Some(without_library_verdict(facts));
    }
    // A stack is one of the loaded driver, whatever has become of the file of its library.
    let has_stack = facts.count_stacks() > 0;
    // As long as the old driver is loaded, programs with the old library get stacks from it, even
    // for their first socket.
    if !has_stack
        && host.library_matches == Some(true)
        && facts.count_mapping(LibraryMapping::Replaced) > 0
    {
        return Some(Verdict::with_remedy(
            VerdictState::OtherLibrary,
            "it maps a libonload.so that has been removed or replaced, and the loaded driver \
             belongs to the new one",
            "start the container again",
        ));
    }
    if !has_stack
        && host.library_matches == Some(false)
        && facts.count_mapping(LibraryMapping::Yes) > 0
    {
        return Some(Verdict::with_remedy(
            VerdictState::OtherLibrary,
            format!(
                "the host's libonload.so was built for another driver than the loaded one: its programs {OTHER_BUILD_EFFECT}"
            ),
            "follow onload-ctk doctor on onload-library, then start the container again: until \
             then onload.dev/nic is not offered",
        ));
    }
    with_library(facts, host)
}

fn with_library(facts: &ContainerFacts, host: HostFacts) -> Option<Verdict> {
    let has_interface = match facts.has_host_network {
        // A program of this network has a stack only if Onload has an interface.
        Some(true) => host.has_nic.or((facts.count_stacks() > 0).then_some(true)),
        Some(false) => facts.has_accelerated(),
        None => None,
    };
    Some(match has_interface {
        // An interface that is lost, or without Onload's program, has a separate verdict.
        Some(false) if !facts.lost.is_empty() || !facts.without_program.is_empty() => return None,
        Some(false) => no_interface_verdict(facts, host),
        None => unknown_interfaces_verdict(facts),
        Some(true) if facts.count_accelerated() > 0 => accelerated_verdict(facts),
        Some(true) => without_stack_verdict(facts),
    })
}

fn describe_programs(programs: &[&KernelSocketProgram]) -> String {
    let names = programs.iter().map(|program| {
        let name = format!("{} {}", program.pid, program.name);
        match program.addresses.as_slice() {
            [] => name,
            addresses => format!("{name} ({})", join_first(addresses, 1)),
        }
    });
    join_first(&names.collect::<Vec<_>>(), MAX_SHOWN)
}

fn accelerated_verdict(facts: &ContainerFacts) -> Verdict {
    let (preloading, plain): (Vec<_>, Vec<_>) =
        facts.kernel_socket_programs.iter().partition(|program| program.has_library);
    let (elsewhere, preloading): (Vec<_>, Vec<_>) = preloading.into_iter().partition(|program| {
        program.is_accelerated && program.cause == KernelSocketCause::OtherInterface
    });
    let accelerated = facts.count_accelerated();
    let others = preloading.iter().filter(|program| !program.is_accelerated).count();
    let mut reason =
        format!("processes with a stack of Onload: {accelerated} of {}", accelerated + others);
    if !plain.is_empty() {
        reason += &format!(
            "; on the kernel's sockets, without libonload.so: {}",
            describe_programs(&plain)
        );
    }
    if !elsewhere.is_empty() {
        reason += &format!(
            "; in part on the kernel's sockets, by interfaces that Onload does not have: {}",
            describe_programs(&elsewhere)
        );
    }
    reason += replaced_note(facts);
    let Some(first) = preloading.first() else {
        return Verdict::without_remedy(VerdictState::Accelerated, reason);
    };
    let (cause, remedy) = cause_and_remedy(facts, &first.cause);
    let share = if first.is_accelerated { "in part on" } else { "on" };
    let programs = describe_programs(&preloading);
    reason += &format!("; {share} the kernel's sockets: {programs}; {cause}");
    Verdict::with_remedy(VerdictState::PartlyAccelerated, reason, remedy)
}

/// Describes the effect of a library that was replaced while the old driver is loaded. A start before the new driver is
/// loaded fails: no interface is offered then.
fn replaced_note(facts: &ContainerFacts) -> &'static str {
    match facts.count_mapping(LibraryMapping::Replaced) {
        0 => "",
        _ => {
            "; the host's libonload.so has been replaced: stop the container before the new driver \
             is loaded, and start it afterwards"
        }
    }
}

/// Starts one more program of a container with the library. Programs started by `exec` have neither the device's
/// variables nor, with docker before 29, a limit of open files at which the library can allocate its table.
fn exec_command(facts: &ContainerFacts) -> String {
    let variables = [
        "LD_PRELOAD=libonload.so".to_owned(),
        format!("EF_FDTABLE_SIZE={}", CdiConfig::default().fdtable_size),
    ];
    let container = quote_for_shell(facts.name.as_deref().unwrap_or(&facts.group.id));
    match facts.group.engine {
        engine @ (ContainerEngine::Docker | ContainerEngine::Podman) => {
            format!("{} exec -e {} {container} PROGRAM", engine.as_str(), variables.join(" -e "))
        }
        _ => format!("env {} PROGRAM", variables.join(" ")),
    }
}

fn without_stack_verdict(facts: &ContainerFacts) -> Verdict {
    let (programs, all) = (facts.count_preloading(), facts.processes.len());
    let (preloading, plain): (Vec<_>, Vec<_>) =
        facts.kernel_socket_programs.iter().partition(|program| program.has_library);
    if let Some(first) = preloading.first() {
        let (cause, remedy) = cause_and_remedy(facts, &first.cause);
        let stack = if first.has_stack {
            "although it has a stack of Onload"
        } else {
            "with the library and without a stack of Onload"
        };
        let programs = describe_programs(&preloading);
        let reason = format!("on the kernel's sockets, {stack}: {programs}; {cause}");
        return Verdict::with_remedy(VerdictState::NoStack, reason, remedy);
    }
    // The driver refuses every other build than its own, and a program then goes on without it.
    if facts.count_mapping(LibraryMapping::Foreign) > 0
        && !facts.processes.iter().any(ContainerProcess::has_driver)
    {
        return Verdict::with_remedy(
            VerdictState::Unknown,
            "it preloads a libonload.so that is not this host's, and no program has an Onload \
             descriptor: the library may not match the driver",
            "remove the image's own library and LD_PRELOAD, so that the host's is used",
        );
    }
    if !plain.is_empty() {
        return Verdict::with_remedy(
            VerdictState::NoStack,
            format!(
                "on the kernel's sockets, without libonload.so, which other programs of it preload: {}",
                describe_programs(&plain)
            ),
            format!(
                "make it the container's main program, or start it with: {}",
                exec_command(facts)
            ),
        );
    }
    if facts
        .processes
        .iter()
        .any(|process| !process.sockets.is_empty() && process.kernel_addresses.is_none())
    {
        return Verdict::with_remedy(
            VerdictState::Unknown,
            "Onload is preloaded, but could not determine in time whether its sockets are the \
             kernel's",
            "check: onload_stackdump, ss --tcp --udp --processes",
        );
    }
    let has_local_socket = facts.processes.iter().any(|process| process.has_local_socket);
    let missing = match has_local_socket {
        true => "no program has a socket for other machines yet",
        false => "no program has opened a socket yet",
    };
    Verdict::without_remedy(
        VerdictState::Ready,
        format!(
            "processes that preload the library: {programs} of {all}; {missing}{}",
            replaced_note(facts)
        ),
    )
}

/// Why a program with the library uses the kernel's sockets, and what to do.
fn cause_and_remedy(facts: &ContainerFacts, cause: &KernelSocketCause) -> (String, String) {
    let names = facts.accelerated.join(", ");
    match cause {
        KernelSocketCause::OtherInterface => (
            format!("Onload leaves traffic that does not use {names} to the kernel"),
            format!("use an address of {names}, or a route over it; or let Onload accelerate the other interface (onload-ctk discover --explain says what that needs), and {RESTART_REMEDY}"),
        ),
        KernelSocketCause::LeftToKernel => (
            "could not determine why Onload left them to the kernel".to_owned(),
            format!("check dmesg, and with AF_XDP the channels of the interface ({}): a stack \
                receives the packets of one channel", facts.channel_commands.join("; ")),
        ),
        KernelSocketCause::Forbidden => (
            "EF_DONT_ACCELERATE is in its environment".to_owned(),
            format!("remove EF_DONT_ACCELERATE, and {RESTART_REMEDY}"),
        ),
        KernelSocketCause::Interfaces { variable, value } => (
            format!("{variable}={value} leaves no accelerated interface ({names})"),
            format!("remove {variable}, or correct it, and {RESTART_REMEDY}"),
        ),
        KernelSocketCause::SharedStack { name, owner } => (
            format!("EF_NAME={name} names a stack of user {owner}, which does not share it"),
            format!("set another EF_NAME, or EF_SHARE_WITH=UID with this program's user in the programs of user {owner}; then {RESTART_REMEDY}"),
        ),
        KernelSocketCause::GoProgram => (
            "it is a Go program, which opens sockets by direct system calls, so a preload has no \
             effect".to_owned(),
            "use a program that opens its sockets with libc".to_owned(),
        ),
        KernelSocketCause::Failed(StackError::NO_FREE_STACK) => no_free_stack(
            facts,
            "the kernel's log has \"Failed to allocate stack (rc=-16)\" of it: no stack was free",
        ),
        // An interface whose channels were changed after its registration answers so (seen with igb).
        KernelSocketCause::Failed(StackError::INVALID) if !facts.stack_users.is_empty() => {
            no_free_stack(
                facts,
                "the kernel's log has \"Failed to allocate stack (rc=-22)\" of it: perhaps no \
                 stack was free",
            )
        }
        KernelSocketCause::Failed(StackError::Refused(rc)) => (
            format!("the kernel's log has \"Failed to allocate stack (rc={rc})\" of it"),
            format!("check dmesg, where the driver usually logs the reason before it, and the EF_ \
                variables in its environment; then {RESTART_REMEDY}"),
        ),
        KernelSocketCause::Failed(StackError::NoInterface) => (
            "the kernel's log says that Onload found no interface for it".to_owned(),
            format!("{RESTART_REMEDY} now that {names} is there"),
        ),
        KernelSocketCause::OtherBuild => (
            "its libonload.so is not this host's, and the driver rejected it, as it does a library \
             of another build".to_owned(),
            "remove the image's own library and LD_PRELOAD, so that the host's is used".to_owned(),
        ),
        KernelSocketCause::Unknown => (
            format!("the cause is unknown; it may have started before Onload had {names}"),
            format!("{RESTART_REMEDY}; if that does not help, check the program's output, dmesg, \
                and the EF_ variables in its environment"),
        ),
    }
}

/// An interface with AF_XDP serves one stack for each channel, and a program that is refused one gets none later.
fn no_free_stack(facts: &ContainerFacts, cause: &str) -> (String, String) {
    let (orphans, others): (Vec<&StackUser>, Vec<&StackUser>) =
        facts.stack_users.iter().partition(|user| **user == StackUser::Orphans);
    let users: Vec<String> = others.iter().chain(&orphans).map(ToString::to_string).collect();
    let own_name = facts.name.as_deref().unwrap_or(&facts.group.id);
    let remedy = match others.as_slice() {
        [] if orphans.is_empty() => format!("{RESTART_REMEDY}, since stacks are free now"),
        [] => format!("wait until onload_stackdump -z lists no stack, and {RESTART_REMEDY}"),
        [StackUser::Container { name, .. }] if name == own_name => format!(
            "set EF_NAME, so that its processes share one stack, and {RESTART_REMEDY}; \
             docs/network.md explains how an interface can serve more stacks"
        ),
        _ => format!(
            "stop one of these, wait until onload_stackdump -z lists no stack, and \
             {RESTART_REMEDY}; docs/network.md explains how an interface can serve more stacks"
        ),
    };
    match users.as_slice() {
        [] => (cause.to_owned(), remedy),
        users => (format!("{cause}; stacks are held by: {}", join_first(users, MAX_SHOWN)), remedy),
    }
}

fn unknown_interfaces_verdict(facts: &ContainerFacts) -> Verdict {
    let unknown: Vec<&str> = facts
        .interfaces
        .iter()
        .flatten()
        .filter(|interface| interface.is_accelerated.is_none())
        .map(|interface| interface.name.as_str())
        .collect();
    if unknown.is_empty() {
        let reason = match facts.has_host_network {
            Some(true) => {
                "Onload is preloaded, but could not determine whether it has an interface of the \
                 host"
            }
            _ => "Onload is preloaded, but its interfaces could not be inspected",
        };
        Verdict::with_remedy(VerdictState::Unknown, reason, "run as root: sudo onload-ctk status")
    } else {
        Verdict::with_remedy(
            VerdictState::Unknown,
            format!(
                "Onload is preloaded, but could not determine whether it has its interface {}",
                unknown.join(", ")
            ),
            "run as root, with debugfs: mount -t debugfs none /sys/kernel/debug",
        )
    }
}

fn no_interface_verdict(facts: &ContainerFacts, host: HostFacts) -> Verdict {
    if facts.has_host_network == Some(true) {
        let reason = "Onload is preloaded, but the host has no accelerated interface";
        return Verdict::with_remedy(
            VerdictState::NoInterface,
            reason,
            "run onload-ctk discover --explain",
        );
    }
    let names: Vec<&str> =
        facts.interfaces.iter().flatten().map(|interface| interface.name.as_str()).collect();
    let name_list = if names.is_empty() { "none but lo".to_owned() } else { names.join(", ") };
    let stacks = match facts.count_stacks() {
        0 => "",
        _ => "; it has an Onload stack without an interface",
    };
    let veth = match host.accelerates_veth {
        Some(false) => {
            "; or set oo_accelerate_veth: echo 1 > /sys/module/onload/parameters/oo_accelerate_veth, for packets that this host routes from and to other machines, and start it again"
        }
        Some(true) | None => "",
    };
    Verdict::with_remedy(
        VerdictState::NoInterface,
        format!(
            "Onload is preloaded, but no interface in its network is accelerated \
             ({name_list}){stacks}"
        ),
        format!(
            "use --network host or a macvlan network of an accelerated interface, or request one \
             by onload.dev/netdev, if [discover] offer-netdevs lists it{veth}"
        ),
    )
}

fn without_library_verdict(facts: &ContainerFacts) -> Verdict {
    let lost = |reason: &str, remedy: &str| {
        Verdict::with_remedy(VerdictState::PreloadLost, reason, remedy)
    };
    let is_wanted = facts.start.has_preload_file
        || facts.start.is_preload_configured.unwrap_or(facts.start.has_our_variables);
    if facts.start.is_runtime {
        let reason = "its program has not started yet";
        return Verdict::without_remedy(VerdictState::Ready, reason);
    }
    if !is_wanted {
        return match (facts.start.is_preload_configured, facts.start.environment) {
            (None, PreloadEnvironment::Unknown) => Verdict::with_remedy(
                VerdictState::Unknown,
                "could not determine whether the preload was requested",
                "run as root: sudo onload-ctk status; if that says the same, check the engine's \
                 options for LD_PRELOAD",
            ),
            _ => Verdict::without_remedy(
                VerdictState::Plain,
                "it has Onload's device nodes but no preload, or its first program cleared its \
                 environment",
            ),
        };
    }
    let reads_environment =
        !matches!(facts.start.program, ProgramLinkage::Musl | ProgramLinkage::Static);
    if facts.start.is_secure && reads_environment {
        return lost(
            "the loader preloads nothing into a program that has more rights than its caller \
             (set-user-ID, set-group-ID, file capabilities) or gets another SELinux label at its \
             start",
            "start it as its target user, without the set-user-ID bit or setcap; for a label, \
             docs/security.md has the missing rule",
        );
    }
    match (facts.start.program, facts.start.environment) {
        (ProgramLinkage::Static, _) => lost(
            "its program is static, so nothing can be preloaded into it",
            "use a build that is linked with glibc",
        ),
        (ProgramLinkage::Musl, _) => lost(
            "its program is linked with musl, and libonload.so needs glibc",
            "use an image with glibc",
        ),
        (_, PreloadEnvironment::Other) => lost(
            "LD_PRELOAD was set to something else by the user or the image",
            "remove LD_PRELOAD, or set LD_PRELOAD=libonload.so",
        ),
        (_, PreloadEnvironment::None) if !facts.start.has_preload_file => lost(
            "LD_PRELOAD was removed from its environment, or the environment was cleared",
            "keep the environment of the engine, or set preload = \"file\" in \
             /etc/onload-ctk/config.toml (docker before 29 also needs default-ulimits in \
             daemon.json)",
        ),
        (ProgramLinkage::NixGlibc, PreloadEnvironment::None) => lost(
            "its loader is Nix's, which reads /etc/ld-nix.so.preload instead of /etc/ld.so.preload",
            "set onload.dev/preload: env, with the runtime onload",
        ),
        (ProgramLinkage::Unknown, _) => Verdict::with_remedy(
            VerdictState::Unknown,
            "the preload was requested, no process maps the library, and its program cannot be \
             read",
            "run as root: sudo onload-ctk status",
        ),
        _ => lost(
            "the loader could not load libonload.so",
            "search for \"cannot be preloaded\" in the log of the container; its glibc may be too \
             old",
        ),
    }
}
