//! The arguments of the createRuntime hook in a specification. The generator writes them and the
//! hook parses them.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

use onload_cdi::DeviceName;

use crate::claim_uid::ClaimUid;
use crate::class::Class;
use crate::config::{Memlock, RdmaLibraries};
use crate::device_id::DeviceId;
use crate::device_ref::{MAX_NAMES, parse_numbered};
use crate::expectation::Expectation;
use crate::host_settings::InterfaceName;
use crate::netdev::address::InterfaceAddress;
use crate::netdev::new_name::NewInterfaceName;
use crate::netdev::settings::{InterfaceRoute, Mtu};
use crate::token::Token;
use crate::vf_config::VfArgument;
use onload_sys::error::{Context as _, Error, Result, bail, written_as_text};
use onload_sys::pci::PciAddress;
use onload_sys::text::Quoted;

/// The program, as the first word of the hook's command line.
pub const PROGRAM: &str = "onload-hook";

/// The work that a specification requests from the hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookArguments {
    pub memlock: Option<Memlock>,
    pub expect: Vec<Expectation>,
    /// The devices that the container leases while it lives.
    pub lease: Vec<DeviceId>,
    /// The token of the reservation under which the devices were chosen.
    pub token: Option<Token>,
    /// The ResourceClaim of the leases. All containers of the claim share them.
    pub claim: Option<ClaimUid>,
    /// Pools from which the hook chooses members that the container leases while it lives.
    pub take: Vec<TakeArgument>,
    /// Interfaces that move into the container's network namespace.
    pub netdev: Vec<NetdevArgument>,
    /// RDMA devices that move into the container's network namespace, or are already there.
    pub rdma_netns: Vec<RdmaArgument>,
    /// Whether the host's provider libraries are mounted if the image's are incompatible.
    pub rdma_libraries: Option<RdmaLibraries>,
    /// Settings of virtual functions while the container has them.
    pub vf: Vec<VfArgument>,
    /// Addresses of interfaces in the container. An interface with addresses here has none of those
    /// in the configuration. The same applies to routes and the MTU.
    pub address: Vec<InterfaceValue<InterfaceAddress>>,
    pub route: Vec<InterfaceValue<InterfaceRoute>>,
    pub mtu: Vec<InterfaceValue<Mtu>>,
    /// Names of interfaces in the container, at most one for each.
    pub rename: Vec<InterfaceValue<NewInterfaceName>>,
}

struct Flag {
    name: &'static str,
    /// The form of its value.
    value: &'static str,
    values: fn(&mut HookArguments) -> &mut dyn FlagValues,
}

/// All flags, in the order in which they are written.
const FLAGS: [Flag; 14] = [
    flag("--memlock", "unlimited|BYTES", |arguments| &mut arguments.memlock),
    flag("--expect", "NODE=CLASS:ID[@PCI][#MAJOR:MINOR]", |arguments| &mut arguments.expect),
    flag("--lease", "CLASS:NAME", |arguments| &mut arguments.lease),
    flag("--token", "HEX", |arguments| &mut arguments.token),
    flag("--claim", "UID", |arguments| &mut arguments.claim),
    flag("--take", "CLASS:POOL[*N]", |arguments| &mut arguments.take),
    flag("--netdev", "IFNAME@PCI", |arguments| &mut arguments.netdev),
    flag("--rdma-netns", "IBDEV@PCI", |arguments| &mut arguments.rdma_netns),
    flag("--rdma-libraries", "auto|image", |arguments| &mut arguments.rdma_libraries),
    flag("--vf", "CLASS:NAME=KEY=VALUE[;KEY=VALUE]…", |arguments| &mut arguments.vf),
    flag("--address", "IFNAME=ADDRESS/PREFIX", |arguments| &mut arguments.address),
    flag("--route", "IFNAME=NETWORK[ via GATEWAY]", |arguments| &mut arguments.route),
    flag("--mtu", "IFNAME=BYTES", |arguments| &mut arguments.mtu),
    flag("--rename", "IFNAME=NAME", |arguments| &mut arguments.rename),
];

const fn flag(
    name: &'static str,
    value: &'static str,
    values: fn(&mut HookArguments) -> &mut dyn FlagValues,
) -> Flag {
    Flag { name, value, values }
}

/// The values of a flag: at most one, or a list.
trait FlagValues {
    /// Returns whether the flag may have several values.
    fn is_list(&self) -> bool;
    /// Adds a value. Returns `false` if the flag already has its only value.
    fn add(&mut self, text: &str) -> Result<bool>;
    fn to_strings(&self) -> Vec<String>;
}

impl<T: FromStr<Err = Error> + Into<String> + Clone> FlagValues for Option<T> {
    fn is_list(&self) -> bool {
        false
    }

    fn add(&mut self, text: &str) -> Result<bool> {
        Ok(self.replace(text.parse()?).is_none())
    }

    fn to_strings(&self) -> Vec<String> {
        self.iter().cloned().map(Into::into).collect()
    }
}

impl<T: FromStr<Err = Error> + Into<String> + Clone> FlagValues for Vec<T> {
    fn is_list(&self) -> bool {
        true
    }

    fn add(&mut self, text: &str) -> Result<bool> {
        self.push(text.parse()?);
        Ok(true)
    }

    fn to_strings(&self) -> Vec<String> {
        self.iter().cloned().map(Into::into).collect()
    }
}

written_as_text!(Memlock Expectation TakeArgument NetdevArgument RdmaArgument RdmaLibraries VfArgument);

/// Returns the flags with the forms of their values, for a usage line.
pub fn usage() -> String {
    let mut defaults = HookArguments::default();
    FLAGS
        .map(|Flag { name, value, values }| {
            let suffix = if values(&mut defaults).is_list() { "…" } else { "" };
            format!("[{name} {value}]{suffix}")
        })
        .join(" ")
}

impl HookArguments {
    /// Returns whether the specification requests nothing. In that case the hook follows the
    /// container's annotations.
    pub fn is_empty(&self) -> bool {
        *self == HookArguments::default()
    }

    /// Returns whether the hook checks, leases or moves devices.
    pub fn affects_devices(&self) -> bool {
        !HookArguments { memlock: None, rdma_libraries: None, ..self.clone() }.is_empty()
    }

    /// Returns whether the container's end has to release or remove something.
    pub fn needs_poststop(&self) -> bool {
        self.rdma_libraries == Some(RdmaLibraries::Auto)
            || !self.lease.is_empty()
            || !self.take.is_empty()
    }

    /// Parses the arguments after the stage. An unknown argument stops the container, since it
    /// could be a check.
    pub fn parse(args: &[impl AsRef<OsStr>]) -> Result<HookArguments> {
        let mut parsed = HookArguments::default();
        let mut args = args.iter().map(AsRef::as_ref);
        while let Some(arg) = args.next() {
            let Some(Flag { name, values, .. }) = FLAGS.iter().find(|flag| arg == flag.name) else {
                let [known @ .., last] = FLAGS.map(|flag| flag.name);
                bail!(
                    "unknown option {}; known options are {} and {last}; is this onload-hook older than the specification?",
                    Quoted(&arg.to_string_lossy()),
                    known.join(", ")
                );
            };
            let Some(value) = args.next().and_then(|value| value.to_str()) else {
                bail!("option {name} needs a value");
            };
            if !values(&mut parsed).add(value).context(*name)? {
                bail!("{name} is given twice");
            }
        }
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<()> {
        check_unique("--netdev", &self.netdev, |netdev| &netdev.name)?;
        check_unique("--netdev", &self.netdev, |netdev| &netdev.pci)?;
        check_unique("--rdma-netns", &self.rdma_netns, |argument| &argument.ibdev)?;
        check_unique("--vf", &self.vf, |argument| &argument.device)?;
        for argument in &self.vf {
            let device = &argument.device;
            if !self.lease.contains(device) || !Class::FUNCTION_CLASSES.contains(&device.class) {
                bail!("--vf {argument} is for a netdev or vfio device that no --lease names");
            }
        }
        self.check_devices("--address", &self.address)?;
        self.check_devices("--route", &self.route)?;
        self.check_devices("--mtu", &self.mtu)?;
        self.check_devices("--rename", &self.rename)?;
        check_unique("--mtu", &self.mtu, |argument| &argument.interface)?;
        check_unique("--rename", &self.rename, |argument| &argument.interface)?;
        check_unique("--rename", &self.rename, |argument| &argument.value)
    }

    fn check_devices<T: fmt::Display>(
        &self,
        flag: &str,
        arguments: &[InterfaceValue<T>],
    ) -> Result<()> {
        for argument in arguments {
            if !self.netdev.iter().any(|netdev| netdev.name == argument.interface) {
                bail!("{flag} {argument} is for an interface that no --netdev names");
            }
        }
        Ok(())
    }

    /// Parses a command line into its stage and arguments. Returns `None` if the command belongs to
    /// another program or has invalid arguments.
    pub fn from_command(words: &[String]) -> Option<(&str, HookArguments)> {
        match words {
            [program, stage, rest @ ..] if program == PROGRAM => {
                Some((stage, HookArguments::parse(rest).ok()?))
            }
            _ => None,
        }
    }

    /// Replaces the arguments after the program and the stage of a command line.
    pub fn replace_in(&self, words: &mut Vec<String>) {
        words.truncate(2);
        words.extend(self.to_args());
    }

    /// Returns the arguments in the form that [`HookArguments::parse`] reads.
    pub fn to_args(&self) -> Vec<String> {
        let mut arguments = self.clone();
        let mut args = Vec::new();
        for Flag { name, values, .. } in FLAGS {
            for value in values(&mut arguments).to_strings() {
                args.extend([name.to_owned(), value]);
            }
        }
        args
    }
}

/// The members of a pool that a container requests, as `CLASS:POOL` or `CLASS:POOL*N`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TakeArgument {
    pub class: Class,
    pub pool: DeviceName,
    /// The number of members, from 1 to [`MAX_NAMES`].
    pub count: u32,
}

impl FromStr for TakeArgument {
    type Err = Error;

    /// CLASS extends to the first `:`. A pool's name contains no `*`.
    fn from_str(text: &str) -> Result<Self> {
        if let Some((class, rest)) = text.split_once(':')
            && let Some(class) = Class::from_name(class)
            && let Some((pool, count)) = parse_numbered(rest, '*')
        {
            return Ok(TakeArgument { class, pool, count: count.unwrap_or(1) });
        }
        bail!("{} is not CLASS:POOL, nor CLASS:POOL*N with N from 1 to {MAX_NAMES}", Quoted(text))
    }
}

impl fmt::Display for TakeArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.class, self.pool)?;
        match self.count {
            1 => Ok(()),
            count => write!(f, "*{count}"),
        }
    }
}

/// A network interface that moves into the container's network namespace, as `IFNAME@PCI`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetdevArgument {
    /// The interface's name on the host, and in the container unless `--rename` sets another.
    pub name: InterfaceName,
    /// The PCI function that the interface must belong to.
    pub pci: PciAddress,
}

impl FromStr for NetdevArgument {
    type Err = Error;

    /// Splits at the last `@`, since the kernel allows one in the name of an interface.
    fn from_str(text: &str) -> Result<Self> {
        if let Some((name, pci)) = text.rsplit_once('@')
            && let (Ok(name), Ok(pci)) = (name.parse(), pci.parse())
        {
            return Ok(NetdevArgument { name, pci });
        }
        bail!("{} is not IFNAME@PCI, such as \"ens1f0v3@0000:3b:02.1\"", Quoted(text))
    }
}

impl fmt::Display for NetdevArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.pci)
    }
}

/// An RDMA device that moves into the container's network namespace, as `IBDEV@PCI`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RdmaArgument {
    /// The device's name in /sys/class/infiniband. Not empty, and without `/`.
    pub ibdev: String,
    /// The PCI function that the device must belong to.
    pub pci: PciAddress,
}

impl FromStr for RdmaArgument {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some((ibdev, pci)) = text.rsplit_once('@')
            && is_ibdev_name(ibdev)
            && let Ok(pci) = pci.parse()
        {
            return Ok(RdmaArgument { ibdev: ibdev.to_owned(), pci });
        }
        bail!("{} is not IBDEV@PCI, such as \"mlx5_0@0000:3b:00.0\"", Quoted(text))
    }
}

fn is_ibdev_name(name: &str) -> bool {
    // IB_DEVICE_NAME_MAX (include/uapi/rdma/ib_user_verbs.h) includes a null byte.
    (1..64).contains(&name.len())
        && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
        && name != "."
        && name != ".."
}

impl fmt::Display for RdmaArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.ibdev, self.pci)
    }
}

/// A setting of an interface in the container, as `IFNAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceValue<T> {
    /// The interface's name on the host.
    pub interface: InterfaceName,
    pub value: T,
}

impl<T: FromStr<Err = Error>> FromStr for InterfaceValue<T> {
    type Err = Error;

    /// Splits at the last `=`: the kernel allows one in the name of an interface, and no value
    /// contains one.
    fn from_str(text: &str) -> Result<Self> {
        if let Some((name, value)) = text.rsplit_once('=')
            && let Ok(interface) = name.parse()
        {
            return Ok(InterfaceValue { interface, value: value.parse()? });
        }
        bail!("{} names no interface before its last \"=\"", Quoted(text))
    }
}

impl<T: fmt::Display> fmt::Display for InterfaceValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.interface, self.value)
    }
}

impl<T: fmt::Display> From<InterfaceValue<T>> for String {
    fn from(argument: InterfaceValue<T>) -> String {
        argument.to_string()
    }
}

/// Rejects arguments of a flag with the same key.
fn check_unique<T, K: PartialEq>(
    flag: &str,
    arguments: &[T],
    key: impl Fn(&T) -> &K,
) -> Result<()> {
    for (index, argument) in arguments.iter().enumerate() {
        if arguments[..index].iter().any(|other| key(other) == key(argument)) {
            bail!("{flag} is given twice");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(words: &[&str]) -> String {
        format!("{:#}", HookArguments::parse(words).unwrap_err())
    }

    #[test]
    fn usage_and_manual_page_have_every_flag() {
        let page = include_str!("../../packaging/man/onload-hook.8").replace("\\-", "-");
        let (synopsis, options) = page.split_once(".SH OPTIONS").unwrap();
        for flag in FLAGS {
            assert!(usage().contains(&format!("[{} {}]", flag.name, flag.value)));
            assert!(synopsis.contains(&format!("[ {}\n", flag.name)), "{}", flag.name);
            assert!(
                options.lines().any(
                    |line| line.starts_with(".B") && line.contains(&format!(" {} ", flag.name))
                ),
                "{}",
                flag.name
            );
        }
    }

    #[test]
    fn values_survive_a_round_trip() {
        let mut words: Vec<&str> = "--memlock unlimited \
                     --expect /dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0 \
                     --expect /dev/vfio/15=vfio:0000:81:10.0#241:0 --lease vfio:0000:81:10.0 \
                     --token 0123456789abcdef0123456789abcdef \
                     --claim 0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11 --take vfio:fast \
                     --take rdma:roce*2 --netdev ens1f0v3@0000:3b:02.1 \
                     --netdev a@b=c@10000:3b:02.2 --rdma-netns mlx5_0@0000:3b:00.0 \
                     --rdma-libraries image --vf vfio:0000:81:10.0=vlan=100;vlans=100-199,300;spoof-check=true \
                     --address ens1f0v3=192.0.2.10/24 --address a@b=c=2001:db8::10/64".split(' ').collect();
        words.extend([
            "--route",
            "ens1f0v3=198.51.100.0/24",
            "--route",
            "a@b=c=198.51.100.0/24 via 192.0.2.1",
            "--mtu",
            "ens1f0v3=9000",
            "--mtu",
            "a@b=c=1500",
            "--rename",
            "a@b=c=net1",
        ]);
        let parsed = HookArguments::parse(&words).unwrap();
        assert_eq!(parsed.memlock, Some(Memlock::Unlimited));
        assert_eq!(parsed.expect.len(), 2);
        assert_eq!(parsed.netdev[1].name.as_str(), "a@b=c");
        assert_eq!(parsed.address[1].interface.as_str(), "a@b=c");
        assert_eq!(parsed.to_args(), words);
        assert!(HookArguments::parse(&[""; 0]).unwrap().is_empty());
        assert!(HookArguments::default().to_args().is_empty());
        let bytes = HookArguments::parse(&["--memlock", "65536"]).unwrap();
        assert_eq!(bytes.memlock, Some(Memlock::Bytes(65536)));
    }

    #[test]
    fn a_command_line_of_another_program_or_with_unknown_arguments_is_ignored() {
        let read = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            let found = HookArguments::from_command(&words);
            found.map(|(stage, asked)| (stage.to_owned(), asked.to_args()))
        };
        let memlock = ["--memlock", "1"].map(str::to_owned).to_vec();
        let found = read(&["onload-hook", "createRuntime", "--memlock", "1"]);
        assert_eq!(found, Some(("createRuntime".to_owned(), memlock)));
        let found = read(&["onload-hook", "poststop"]);
        assert_eq!(found, Some(("poststop".to_owned(), Vec::new())));
        for other in [
            &["other-hook", "createRuntime"][..],
            &["onload-hook"],
            &["onload-hook", "createRuntime", "--numa", "1"],
            &[],
        ] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_number_of_members_is_optional() {
        let read = |text: &str| text.parse::<TakeArgument>();
        let take = |pool: &str, count| TakeArgument {
            class: Class::Vfio,
            pool: pool.parse().unwrap(),
            count,
        };
        assert_eq!(read("vfio:any").unwrap(), take("any", 1));
        assert_eq!(read("vfio:any*1").unwrap(), take("any", 1));
        assert_eq!(read("vfio:a:b*128").unwrap(), take("a:b", 128));
        assert_eq!(take("fast", 1).to_string(), "vfio:fast");
        assert_eq!(take("fast", 2).to_string(), "vfio:fast*2");
    }

    #[test]
    fn invalid_members_are_rejected() {
        for text in [
            "",
            "vfio",
            "vfio:",
            ":fast",
            "disk:fast",
            "vfio:*2",
            "vfio:fast*",
            "vfio:fast*0",
            "vfio:fast*129",
            "vfio:fast*02",
            "vfio:fast*+2",
            "vfio:fast*-1",
            "vfio:fast*2*2",
            "vfio:fast*x",
            "vfio:fast *2",
            "vfio=fast",
            "vfio:a/b",
            "vfio:a\nb",
        ] {
            let error = text.parse::<TakeArgument>().unwrap_err().to_string();
            let message = Quoted(text).to_string()
                + " is not CLASS:POOL, nor CLASS:POOL*N with N from 1 to 128";
            assert_eq!(error, message);
        }
    }

    #[test]
    fn invalid_text_is_rejected() {
        assert!(refusal(&["--numa", "1"]).contains("unknown option \"--numa\""));
        assert!(refusal(&["--memlock=1"]).contains("unknown option"));
        assert!(refusal(&["stray"]).contains("unknown option \"stray\""));
        assert!(refusal(&["--memlock"]).contains("needs a value"));
        assert!(refusal(&["--memlock", "1", "--memlock", "2"]).contains("given twice"));
        assert!(refusal(&["--memlock", "-1"]).contains("--memlock: memlock is"));
        assert!(refusal(&["--expect", "x"]).contains("--expect: \"x\" is not"));
        assert!(refusal(&["--lease", "x"]).contains("--lease: \"x\" is not CLASS:NAME"));
        assert!(refusal(&["--take", "x"]).contains("--take: \"x\" is not CLASS:POOL"));
        assert!(refusal(&["--take"]).contains("--take needs a value"));
        for text in ["off", "", "Auto"] {
            let message = refusal(&["--rdma-libraries", text]);
            assert_eq!(message, format!("--rdma-libraries: {text:?} expected auto, image or off"));
        }
        assert!(refusal(&["--token", "x"]).contains("--token: a token has 32"));
        assert!(refusal(&["--claim", "../a"]).contains("--claim: \"../a\" is not a claim uid"));
        assert!(refusal(&["--claim", "a", "--claim", "a"]).contains("--claim is given twice"));
        let token = "0123456789abcdef0123456789abcdef";
        assert!(refusal(&["--token", token, "--token", token]).contains("--token is given twice"));
    }
    #[test]
    fn invalid_interfaces_and_rdma_devices_are_rejected() {
        for text in [
            "",
            "ens1",
            "@0000:3b:00.0",
            "ens1@",
            "ens1@0000:3b:00",
            "ens1@3b:00.0",
            "0000:3b:00.0@ens1",
            "a/b@0000:3b:00.0",
            "..@0000:3b:00.0",
            "sixteen-letters-@0000:3b:00.0",
            "a b@0000:3b:00.0",
            "ens1@0000:3b:00.0\n",
        ] {
            let error = text.parse::<NetdevArgument>().unwrap_err().to_string();
            assert!(error.contains(" is not IFNAME@PCI"), "{text:?}: {error}");
        }
        let long = "x".repeat(64) + "@0000:3b:00.0";
        for text in [
            "",
            "mlx5_0",
            "mlx5_0@",
            "@0000:3b:00.0",
            ".@0000:3b:00.0",
            "../mlx5_0@0000:3b:00.0",
            "mlx5 0@0000:3b:00.0",
            long.as_str(),
        ] {
            let error = text.parse::<RdmaArgument>().unwrap_err().to_string();
            assert!(error.contains(" is not IBDEV@PCI"), "{text:?}: {error}");
        }
    }

    #[test]
    fn settings_require_an_interface_that_moves() {
        let ens1 = ["--netdev", "ens1@0000:3b:00.0"];
        let given = |flag, value| refusal(&[ens1[0], ens1[1], flag, value]);
        for (flag, value, says) in [
            ("--address", "ens1", "--address: \"ens1\" names no interface before its last \"=\""),
            ("--address", "=192.0.2.1/24", "names no interface"),
            ("--address", "ens1=192.0.2.1", "\"192.0.2.1\" is not ADDRESS/PREFIX"),
            ("--address", "ens1=192.0.2.0/24", "the address of its network"),
            ("--route", "ens1=198.51.100.0/24 via", "is not NETWORK, nor NETWORK via"),
            ("--route", "ens1=198.51.100.1/24", "is no network"),
            ("--mtu", "ens1=67", "--mtu: expected a number of bytes from 68 to 65535"),
            ("--mtu", "ens1=01500", "\"01500\" is not a number of bytes"),
            ("--mtu", "1500", "names no interface"),
            (
                "--rename",
                "ens1=eth0",
                "\"eth0\" is not a valid name for an interface in a container",
            ),
            ("--rename", "ens1=", "\"\" is not a valid name for an interface in a container"),
        ] {
            let refused = given(flag, value);
            assert!(refused.contains(says), "{flag} {value}: {refused}");
        }
        for (flag, value) in [
            ("--address", "ens2=192.0.2.1/24"),
            ("--route", "ens2=198.51.100.0/24 via 192.0.2.1"),
            ("--mtu", "ens2=1500"),
            ("--rename", "ens2=net1"),
        ] {
            let message = format!("{flag} {value} is for an interface that no --netdev names");
            assert_eq!(given(flag, value), message);
        }
    }

    #[test]
    fn unique_arguments_are_not_repeated() {
        let ens1 = ["--netdev", "ens1@0000:3b:00.0"];
        let both = [ens1[0], ens1[1], "--netdev", "ens2@0000:3b:00.1"];
        for (before, more) in [
            (&ens1[..], ["--netdev", "ens2@0000:3b:00.0"]),
            (&ens1, ["--netdev", "ens1@0000:3b:00.1"]),
            (&ens1, ["--mtu", "ens1=1500"]),
            (&ens1, ["--rename", "ens1=net2"]),
            (&both, ["--rename", "ens2=net1"]),
        ] {
            let first = ["--mtu", "ens1=9000", "--rename", "ens1=net1"];
            let words = [before, &first, &more].concat();
            assert_eq!(refusal(&words), format!("{} is given twice", more[0]));
        }
        assert!(refusal(&["--netdev"]).contains("--netdev needs a value"));
        assert!(refusal(&["--rdma-netns", "x"]).contains("--rdma-netns: \"x\" is not IBDEV@PCI"));
    }
}
