//! The arguments of the createRuntime hook that a specification carries, as the generator writes them and
//! the hook reads them: `--memlock unlimited|BYTES`, `--token HEX` and `--claim UID` at most once, `--expect …`,
//! `--lease CLASS:NAME`, `--take CLASS:POOL[*N]`, `--netdev IFNAME@PCI`, `--rdma-netns IBDEV@PCI` and
//! `--address IFNAME=ADDRESS/PREFIX` any number of times.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::str::FromStr;

use onload_cdi::DeviceName;

use crate::class::Class;
use crate::config::{Memlock, NotMemlock};
use crate::expect::{Expect, ExpectError};
use crate::host_settings::Interface;
use crate::lease::{ClaimUid, Device, NotClaimUid, NotDevice, NotToken, Token};
use crate::netdev::address::{InterfaceAddress, NotAddress};
use crate::pci::PciAddress;
use crate::text::Quoted;

/// The program, as the first word of its command line.
pub const PROGRAM: &str = "onload-hook";

const MEMLOCK: &str = "--memlock";
/// What a node is expected to be.
const EXPECT: &str = "--expect";
/// A device that the container has for itself.
const LEASE: &str = "--lease";
/// What tells the reservation that the leases were made with.
const TOKEN: &str = "--token";

/// The claim of a cluster engine that the leases are for.
const CLAIM: &str = "--claim";
/// Members of a pool, one of which the hook chooses for the container.
const TAKE: &str = "--take";
/// An interface that moves into the container's network namespace.
const NETDEV: &str = "--netdev";
/// An RDMA device that moves there.
const RDMA_NETNS: &str = "--rdma-netns";
/// An address that an interface has there.
const ADDRESS: &str = "--address";
/// The most members of one pool that a container is given: as many as an annotation may name.
pub const MAX_TAKE: u32 = 128;

/// Members of a pool that a container is to have, as `CLASS:POOL` or `CLASS:POOL*N`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Take {
    pub class: Class,
    /// The pool's name in that class.
    pub pool: DeviceName,
    /// How many members, from 1 to [`MAX_TAKE`].
    pub count: u32,
}

/// A text that is not `CLASS:POOL` or `CLASS:POOL*N`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not CLASS:POOL, nor CLASS:POOL*N with N from 1 to {MAX_TAKE}")]
pub struct NotTake(String);

impl crate::error::Typed for NotTake {}

impl FromStr for Take {
    type Err = NotTake;

    /// CLASS reaches up to the first `:`; neither `*` nor a sign stands in a pool's name or a number.
    fn from_str(text: &str) -> Result<Self, NotTake> {
        let parsed = text.split_once(':').and_then(|(class, rest)| {
            let (pool, count) = match rest.split_once('*') {
                None => (rest, 1),
                Some((pool, count)) => (pool, parse_count(count)?),
            };
            Some(Take {
                class: class.parse().ok()?,
                pool: DeviceName::try_from(pool).ok()?,
                count,
            })
        });
        parsed.ok_or_else(|| NotTake(Quoted(text).to_string()))
    }
}

/// A number of members as it is written, without sign or leading zeros.
fn parse_count(text: &str) -> Option<u32> {
    let count: u32 = text.parse().ok()?;
    let is_count = (1..=MAX_TAKE).contains(&count) && count.to_string() == text;
    is_count.then_some(count)
}

impl fmt::Display for Take {
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
pub struct MovedInterface {
    /// Its name, on the host and in the container.
    pub name: Interface,
    /// The PCI function that it must belong to.
    pub pci: PciAddress,
}

/// A text that is not `IFNAME@PCI`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not IFNAME@PCI, as \"ens1f0v3@0000:3b:02.1\" is one")]
pub struct NotMovedInterface(String);

impl crate::error::Typed for NotMovedInterface {}

impl FromStr for MovedInterface {
    type Err = NotMovedInterface;

    /// The last `@` splits: the kernel allows one in the name of an interface.
    fn from_str(text: &str) -> Result<Self, NotMovedInterface> {
        let parsed = text.rsplit_once('@').and_then(|(name, pci)| {
            let name = Interface::try_from(name.to_owned()).ok()?;
            let pci = pci.parse().ok()?;
            Some(MovedInterface { name, pci })
        });
        parsed.ok_or_else(|| NotMovedInterface(Quoted(text).to_string()))
    }
}

impl fmt::Display for MovedInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.pci)
    }
}

/// An RDMA device that moves into the container's network namespace, as `IBDEV@PCI`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MovedRdma {
    /// Its name in /sys/class/infiniband; neither empty nor with a `/`.
    pub ibdev: String,
    /// The PCI function that it must belong to.
    pub pci: PciAddress,
}

/// A text that is not `IBDEV@PCI`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not IBDEV@PCI, as \"mlx5_0@0000:3b:00.0\" is one")]
pub struct NotMovedRdma(String);

impl crate::error::Typed for NotMovedRdma {}

/// The bytes of an RDMA device's name with the null byte at its end (`IB_DEVICE_NAME_MAX` of
/// include/uapi/rdma/ib_user_verbs.h).
const IB_DEVICE_NAME_MAX: usize = 64;

impl FromStr for MovedRdma {
    type Err = NotMovedRdma;

    /// The last `@` splits.
    fn from_str(text: &str) -> Result<Self, NotMovedRdma> {
        let is_odd = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        let is_name = |name: &str| {
            let is_short = (1..IB_DEVICE_NAME_MAX).contains(&name.len());
            is_short && !name.contains(is_odd) && name != "." && name != ".."
        };
        let parsed = text.rsplit_once('@').and_then(|(ibdev, pci)| {
            let pci = pci.parse().ok()?;
            is_name(ibdev).then(|| MovedRdma {
                ibdev: ibdev.to_owned(),
                pci,
            })
        });
        parsed.ok_or_else(|| NotMovedRdma(Quoted(text).to_string()))
    }
}

impl fmt::Display for MovedRdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.ibdev, self.pci)
    }
}

/// An address that an interface has in the container, as `IFNAME=ADDRESS/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GivenAddress {
    /// The name of the interface, on the host and in the container.
    pub interface: Interface,
    pub address: InterfaceAddress,
}

/// Why a text is not `IFNAME=ADDRESS/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotGivenAddress {
    #[error("{0} is not IFNAME=ADDRESS/PREFIX, as \"ens1f0v3=192.0.2.10/24\" is one")]
    Form(String),
    #[error(transparent)]
    Address(#[from] NotAddress),
}

impl crate::error::Typed for NotGivenAddress {}

impl FromStr for GivenAddress {
    type Err = NotGivenAddress;

    /// The last `=` splits: the kernel allows one in the name of an interface.
    fn from_str(text: &str) -> Result<Self, NotGivenAddress> {
        let form = || NotGivenAddress::Form(Quoted(text).to_string());
        let (name, address) = text.rsplit_once('=').ok_or_else(form)?;
        Ok(GivenAddress {
            interface: Interface::try_from(name.to_owned()).map_err(|_| form())?,
            address: address.parse()?,
        })
    }
}

impl fmt::Display for GivenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.interface, self.address)
    }
}

/// What a specification asks the hook to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookArguments {
    pub memlock: Option<Memlock>,
    /// What nodes are expected to be.
    pub expect: Vec<Expect>,
    /// Devices that the container has for itself while it lives.
    pub lease: Vec<Device>,
    /// What tells the reservation that they were chosen with.
    pub token: Option<Token>,
    /// The claim of a cluster engine that the leases are for: its containers share them.
    pub claim: Option<ClaimUid>,
    /// Members of pools that the container has while it lives, which the hook chooses.
    pub take: Vec<Take>,
    /// Interfaces that move into the container's network namespace.
    pub netdev: Vec<MovedInterface>,
    /// RDMA devices that move there, or are there.
    pub rdma_netns: Vec<MovedRdma>,
    /// Addresses that interfaces have there. An interface that is named here has these and none that the
    /// configuration says.
    pub address: Vec<GivenAddress>,
}

/// Why an argument list is rejected.
#[derive(Debug, thiserror::Error)]
pub enum HookArgumentsError {
    /// An option that this version does not know; a newer one might have meant a check.
    #[error(
        "unknown option {0}; known options are --memlock, --expect, --lease, --token, --claim, --take, --netdev, --rdma-netns and --address; is this onload-hook older than the specification?"
    )]
    Unknown(String),
    /// An option without its value.
    #[error("option {0} needs a value")]
    NoValue(&'static str),
    #[error("{0} is given twice")]
    Twice(&'static str),
    #[error("--memlock")]
    Memlock(#[from] NotMemlock),
    #[error("--expect")]
    Expect(#[from] ExpectError),
    #[error("--lease")]
    Lease(#[from] NotDevice),
    #[error("--token")]
    Token(#[from] NotToken),
    /// Not the uid of a claim.
    #[error("--claim")]
    Claim(#[from] NotClaimUid),
    /// Not members of a pool.
    #[error("--take")]
    Take(#[from] NotTake),
    #[error("--netdev")]
    Netdev(#[from] NotMovedInterface),
    #[error("--rdma-netns")]
    RdmaNetns(#[from] NotMovedRdma),
    /// Not an address of an interface.
    #[error("--address")]
    Address(#[from] NotGivenAddress),
    /// An address for an interface that does not move.
    #[error("--address {address} is for an interface that no --netdev names")]
    NoInterface { address: String },
}

impl crate::error::Typed for HookArgumentsError {}

impl HookArguments {
    /// Whether there is nothing to do. Then the container's annotations count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == HookArguments::default()
    }

    /// Parses the arguments after the stage.
    ///
    /// # Errors
    /// [`HookArgumentsError`]. Anything unknown stops the container, since a check could be lost.
    pub fn parse(args: &[OsString]) -> Result<HookArguments, HookArgumentsError> {
        let mut parsed = HookArguments::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some(MEMLOCK) => {
                    let text = value(args.next(), MEMLOCK)?;
                    if parsed.memlock.replace(text.parse()?).is_some() {
                        return Err(HookArgumentsError::Twice(MEMLOCK));
                    }
                }
                Some(LEASE) => {
                    let text = value(args.next(), LEASE)?;
                    parsed.lease.push(text.parse()?);
                }
                Some(TOKEN) => {
                    let text = value(args.next(), TOKEN)?;
                    if parsed.token.replace(text.parse()?).is_some() {
                        return Err(HookArgumentsError::Twice(TOKEN));
                    }
                }
                Some(CLAIM) => {
                    let text = value(args.next(), CLAIM)?;
                    if parsed.claim.replace(text.parse()?).is_some() {
                        return Err(HookArgumentsError::Twice(CLAIM));
                    }
                }
                Some(EXPECT) => {
                    let text = value(args.next(), EXPECT)?;
                    parsed.expect.push(text.parse()?);
                }
                Some(TAKE) => {
                    let text = value(args.next(), TAKE)?;
                    parsed.take.push(text.parse()?);
                }
                Some(NETDEV) => {
                    let text = value(args.next(), NETDEV)?;
                    parsed.netdev.push(text.parse()?);
                }
                Some(RDMA_NETNS) => {
                    let text = value(args.next(), RDMA_NETNS)?;
                    parsed.rdma_netns.push(text.parse()?);
                }
                Some(ADDRESS) => {
                    let text = value(args.next(), ADDRESS)?;
                    parsed.address.push(text.parse()?);
                }
                _ => {
                    let arg = Quoted(&arg.to_string_lossy()).to_string();
                    return Err(HookArgumentsError::Unknown(arg));
                }
            }
        }
        parsed.check()
    }

    /// Refuses what does not go together.
    fn check(self) -> Result<HookArguments, HookArgumentsError> {
        for (at, moved) in self.netdev.iter().enumerate() {
            let mut rest = self.netdev[at + 1..].iter();
            if rest.any(|other| other.name == moved.name || other.pci == moved.pci) {
                return Err(HookArgumentsError::Twice(NETDEV));
            }
        }
        for (at, moved) in self.rdma_netns.iter().enumerate() {
            let mut rest = self.rdma_netns[at + 1..].iter();
            if rest.any(|other| other.ibdev == moved.ibdev) {
                return Err(HookArgumentsError::Twice(RDMA_NETNS));
            }
        }
        let is_stray = |given: &&GivenAddress| {
            let mut netdev = self.netdev.iter();
            !netdev.any(|moved| moved.name == given.interface)
        };
        if let Some(given) = self.address.iter().find(is_stray) {
            let address = given.to_string();
            return Err(HookArgumentsError::NoInterface { address });
        }
        Ok(self)
    }

    /// Parses a whole command line into the stage and the arguments; `None` if it belongs to
    /// another program or is rejected.
    #[must_use]
    pub fn of_command(words: &[String]) -> Option<(&str, HookArguments)> {
        match words {
            [program, stage, rest @ ..] if program == PROGRAM => {
                let rest: Vec<OsString> = rest.iter().map(Into::into).collect();
                Some((stage, HookArguments::parse(&rest).ok()?))
            }
            _ => None,
        }
    }

    /// Puts these behind the program and the stage of a whole command line.
    pub fn replace_in(&self, words: &mut Vec<String>) {
        words.truncate(2);
        words.extend(self.to_args());
    }

    /// The arguments in the form that [`HookArguments::parse`] reads.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let memlock = self.memlock.iter();
        let memlock = memlock.flat_map(|limit| [MEMLOCK.to_owned(), limit.to_string()]);
        let expect = self.expect.iter();
        let expect = expect.flat_map(|expect| [EXPECT.to_owned(), expect.to_string()]);
        let lease = self.lease.iter();
        let lease = lease.flat_map(|device| [LEASE.to_owned(), device.to_string()]);
        let token = self.token.iter();
        let token = token.flat_map(|token| [TOKEN.to_owned(), token.as_str().to_owned()]);
        let claim = self.claim.iter();
        let claim = claim.flat_map(|claim| [CLAIM.to_owned(), claim.to_string()]);
        let take = self.take.iter();
        let take = take.flat_map(|take| [TAKE.to_owned(), take.to_string()]);
        let netdev = self.netdev.iter();
        let netdev = netdev.flat_map(|moved| [NETDEV.to_owned(), moved.to_string()]);
        let rdma_netns = self.rdma_netns.iter();
        let rdma_netns = rdma_netns.flat_map(|moved| [RDMA_NETNS.to_owned(), moved.to_string()]);
        let address = self.address.iter();
        let address = address.flat_map(|given| [ADDRESS.to_owned(), given.to_string()]);
        let leases = lease.chain(token).chain(claim).chain(take);
        let moves = netdev.chain(rdma_netns).chain(address);
        memlock.chain(expect).chain(leases).chain(moves).collect()
    }
}

fn value<'a>(arg: Option<&'a OsString>, of: &'static str) -> Result<&'a str, HookArgumentsError> {
    arg.map(OsString::as_os_str)
        .and_then(OsStr::to_str)
        .ok_or(HookArgumentsError::NoValue(of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Chain;

    fn args(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn refusal(words: &[&str]) -> String {
        Chain(&HookArguments::parse(&args(words)).unwrap_err()).to_string()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let words = [
            "--memlock",
            "unlimited",
            "--expect",
            "/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0",
            "--expect",
            "/dev/vfio/15=vfio:0000:81:10.0#241:0",
            "--lease",
            "vfio:0000:81:10.0",
            "--token",
            "0123456789abcdef0123456789abcdef",
            "--claim",
            "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11",
            "--take",
            "vfio:fast",
            "--take",
            "rdma:roce*2",
            "--netdev",
            "ens1f0v3@0000:3b:02.1",
            "--netdev",
            "a@b=c@10000:3b:02.2",
            "--rdma-netns",
            "mlx5_0@0000:3b:00.0",
            "--address",
            "ens1f0v3=192.0.2.10/24",
            "--address",
            "a@b=c=2001:db8::10/64",
        ];
        let parsed = HookArguments::parse(&args(&words)).unwrap();
        assert_eq!(parsed.memlock, Some(Memlock::Unlimited));
        assert_eq!(parsed.expect.len(), 2);
        assert_eq!(parsed.netdev[1].name.as_str(), "a@b=c");
        assert_eq!(parsed.address[1].interface.as_str(), "a@b=c");
        assert_eq!(parsed.to_args(), words);
        assert!(HookArguments::parse(&[]).unwrap().is_empty());
        assert!(HookArguments::default().to_args().is_empty());
        let bytes = HookArguments::parse(&args(&["--memlock", "65536"])).unwrap();
        assert_eq!(bytes.memlock, Some(Memlock::Bytes(65536)));
    }

    #[test]
    fn a_command_line_is_ours_by_its_program_and_only_where_all_of_it_is_understood() {
        let read = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            let found = HookArguments::of_command(&words);
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
    fn members_of_a_pool_are_read_with_their_number() {
        let read = |text: &str| text.parse::<Take>();
        let take = |pool: &str, count| Take {
            class: Class::Vfio,
            pool: pool.parse().unwrap(),
            count,
        };
        assert_eq!(read("vfio:any"), Ok(take("any", 1)));
        assert_eq!(read("vfio:any*1"), Ok(take("any", 1)));
        assert_eq!(read("vfio:a:b*128"), Ok(take("a:b", 128)));
        assert_eq!(take("fast", 1).to_string(), "vfio:fast");
        assert_eq!(take("fast", 2).to_string(), "vfio:fast*2");
    }

    #[test]
    fn what_names_no_members_of_a_pool_is_refused() {
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
            let error = text.parse::<Take>().unwrap_err().to_string();
            let said = Quoted(text).to_string()
                + " is not CLASS:POOL, nor CLASS:POOL*N with N from 1 to 128";
            assert_eq!(error, said);
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
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
        assert!(refusal(&["--token", "x"]).contains("--token: a token has 32"));
        assert!(refusal(&["--claim", "../a"]).contains("--claim: \"../a\" is no uid"));
        assert!(refusal(&["--claim", "a", "--claim", "a"]).contains("--claim is given twice"));
        let token = "0123456789abcdef0123456789abcdef";
        assert!(refusal(&["--token", token, "--token", token]).contains("--token is given twice"));
    }
    #[test]
    fn what_names_no_interface_and_no_rdma_device_is_refused() {
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
            let error = text.parse::<MovedInterface>().unwrap_err().to_string();
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
            let error = text.parse::<MovedRdma>().unwrap_err().to_string();
            assert!(error.contains(" is not IBDEV@PCI"), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_address_stands_for_an_interface_that_moves() {
        let ens1 = ["--netdev", "ens1@0000:3b:00.0", "--address"];
        let given = |address: &'static str| refusal(&[ens1[0], ens1[1], ens1[2], address]);
        assert!(given("ens1").contains("--address: \"ens1\" is not IFNAME=ADDRESS/PREFIX"));
        assert!(given("=192.0.2.1/24").contains("is not IFNAME=ADDRESS/PREFIX"));
        assert!(given("ens1=192.0.2.1").contains("--address: \"192.0.2.1\" is not ADDRESS/PREFIX"));
        assert!(given("ens1=192.0.2.0/24").contains("the address of its network"));
        let said = "--address ens2=192.0.2.1/24 is for an interface that no --netdev names";
        assert_eq!(given("ens2=192.0.2.1/24"), said);
        let twice = [ens1[0], ens1[1], "--netdev", "ens2@0000:3b:00.0"];
        assert_eq!(refusal(&twice), "--netdev is given twice");
        let twice = [ens1[0], ens1[1], "--netdev", "ens1@0000:3b:00.1"];
        assert_eq!(refusal(&twice), "--netdev is given twice");
        assert!(refusal(&["--netdev"]).contains("--netdev needs a value"));
        assert!(refusal(&["--rdma-netns", "x"]).contains("--rdma-netns: \"x\" is not IBDEV@PCI"));
    }
}
