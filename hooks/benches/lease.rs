//! The cost of a member of a pool: choosing it and writing its lease, beside a listing of the same
//! directory, since only the ratio means the same on two machines.
//!
//! `cargo bench -p onload-hooks --bench lease`; the figures are in docs/performance.md.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::path::Path;
use std::time::{Duration, Instant};

use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::pool::Numa;
use onload_core::pool::{Pool, PoolMember};
use onload_core::token::Token;
use onload_lease::run_dir::{LEASES, RunDir};
use onload_lease::{Holder, LeaseError, LeaseRequest, Leases, MemberRequest};
use onload_sys::processes::Processes;

const ROUNDS: usize = 300;
/// A pool of as many members as a host with many virtual functions has.
const MEMBERS: u32 = 4096;

fn main() {
    println!("a member of a pool of {MEMBERS}");
    let mut first = None;
    for leases in [250, 500, 1000, 2000] {
        let (own, floor) = one_is_free(leases);
        let per_lease = own.as_secs_f64() / f64::from(leases);
        let growth = per_lease / *first.get_or_insert(per_lease);
        report(&format!("{leases} leases"), own, floor);
        println!("    a lease costs {growth:.2} times what it costs with 250 leases");
    }
    println!("a pool of 1000 that living containers hold whole");
    let (own, floor) = none_is_free(1000);
    report("refused", own, floor);
}

fn report(what: &str, own: Duration, floor: Duration) {
    let ratio = own.as_secs_f64() / floor.as_secs_f64();
    println!("  {what}: {own:?}; the directory is listed in {floor:?}, ratio {ratio:.1}");
}

/// A directory of leases on tmpfs, as /run is.
struct Bench {
    dir: tempfile::TempDir,
    leases: Leases,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let run = RunDir::find(dir.path()).unwrap().unwrap();
        let leases = Leases::open(&run, Processes::default()).unwrap();
        Bench { dir, leases }
    }

    fn take(
        &self,
        holder: Holder,
        device_request: &MemberRequest,
    ) -> Result<Vec<DeviceId>, LeaseError> {
        let request = LeaseRequest {
            devices: std::slice::from_ref(device_request),
            numa: Numa::Any,
            container: &"0123456789abcdef".repeat(4).parse().unwrap(),
            bundle: Path::new("/run/containerd/io.containerd.runtime.v2.task/moby/0123456789ab"),
            holder,
            token: None,
            claim: None,
            entry_point: "onload-container-runtime",
        };
        self.leases.acquire(&request, &|_| None)
    }

    /// The first members of a pool are held by a process that lives: this one.
    fn hold(&self, count: u32, members: u32) {
        let processes = Processes::default();
        let process = processes.find(std::process::id()).unwrap().unwrap();
        let cgroup = processes.own_cgroup(process.pid, 1).unwrap();
        let holder = Holder::Init { process, cgroup };
        let held = self.take(holder, &device_request(count, members)).unwrap();
        assert_eq!(u32::try_from(held.len()), Ok(count));
    }

    /// A listing, with nothing read.
    fn listing(&self) -> Duration {
        time(|| std::fs::read_dir(self.dir.path().join(LEASES)).unwrap().count()).0
    }
}

/// `count` members of the pool `any`.
fn device_request(count: u32, members: u32) -> MemberRequest {
    let member = |number: u32| {
        let (bus, device, function) = (number >> 8, number >> 3 & 31, number & 7);
        let name = format!("0000:{bus:02x}:{device:02x}.{function}").as_str().try_into().unwrap();
        let numa_node = Some(number % 2);
        PoolMember { name, numa_node }
    };
    let members = (0..members).map(member).collect();
    let name = "any".try_into().unwrap();
    MemberRequest::for_pool(Class::Vfio, name, count, Pool { members, share: 1 })
}

/// Choosing and claiming one, and the listing.
fn one_is_free(leases: u32) -> (Duration, Duration) {
    let bench = Bench::new();
    bench.hold(leases, MEMBERS);
    let one = device_request(1, MEMBERS);
    rounds(&bench, || {
        let token = Token::new().unwrap();
        let holder = Holder::new_reservation(token.clone(), None);
        let (took, taken) = time(|| bench.take(holder, &one));
        let taken = taken.unwrap();
        bench.leases.cancel_reservation(&taken, &token).unwrap();
        took
    })
}

/// Finding that none is free: every lease is judged.
fn none_is_free(members: u32) -> (Duration, Duration) {
    let bench = Bench::new();
    bench.hold(members, members);
    let one = device_request(1, members);
    rounds(&bench, || {
        let holder = Holder::new_reservation(Token::new().unwrap(), None);
        let (took, taken) = time(|| bench.take(holder, &one));
        assert!(matches!(taken, Err(LeaseError::NoneFree(_))));
        took
    })
}

/// The medians of an action and of a listing of the directory, in turn.
fn rounds(bench: &Bench, mut action: impl FnMut() -> Duration) -> (Duration, Duration) {
    let (own, floor): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| (action(), bench.listing())).unzip();
    (median(own), median(floor))
}

fn time<T>(action: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let result = action();
    (begin.elapsed(), result)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
