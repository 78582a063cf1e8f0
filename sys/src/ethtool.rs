//! Channels, RSS and flow rules of an interface (ethtool(8)), which rtnetlink does not report. Numbers and layouts are
//! those of include/uapi/linux/ethtool.h on 64-bit machines; on others all requests fail with EOPNOTSUPP.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use crate::error::last_errno;

/// `SIOCETHTOOL` (include/uapi/linux/sockios.h).
const IOCTL: u16 = 0x8946;
const GET_RULE_COUNT: u32 = 0x2e;
const GET_RULE: u32 = 0x2f;
const GET_RULES: u32 = 0x30;
const GET_CHANNELS: u32 = 0x3c;
const SET_CHANNELS: u32 = 0x3d;
const GET_SPREAD: u32 = 0x46;

/// `struct ethtool_channels`: the command, the maximum counts, and the present counts.
const CHANNELS: usize = 36;
const CHANNEL_COUNTS: usize = 20;
/// `struct ethtool_rxfh` without its table and key. `HASH` has two bytes: the hash function and the input
/// transformation.
const SPREAD: usize = 24;
const TABLE_LENGTH: usize = 8;
const KEY_LENGTH: usize = 12;
const HASH: usize = 16;
/// `struct ethtool_rxnfc` without its list of locations, and the padding that the kernel counts as part of it. It
/// contains `struct ethtool_rx_flow_spec`, which has the rule's location near its end, and the number of rules.
const RULES: usize = 188;
const PADDING: usize = 4;
const RULE: std::ops::Range<usize> = 16..188;
const PLACE: usize = 16 + 160;
const COUNT: usize = 184;

/// Limits for the RSS table and key. No adapter has longer ones.
const MAX_TABLE: u32 = 4096;
const MAX_KEY: u32 = 256;

/// An interface in this process's network namespace.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
    name: [u8; libc::IFNAMSIZ],
}

/// How packets are spread over queues (RSS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RssConfig {
    /// The queue for each hash value.
    pub table: Vec<u32>,
    pub key: Vec<u8>,
    /// The hash function and the input transformation.
    pub hash: [u8; 2],
}

/// The argument of the ioctl (`struct ifreq`).
#[repr(C)]
struct Ifreq {
    name: [u8; libc::IFNAMSIZ],
    data: *mut u8,
    rest: [usize; 2],
}

impl Ethtool {
    /// Opens a socket for requests about an interface. Returns `None` if the name is too long for any interface.
    pub fn open(name: &[u8]) -> Result<Option<Self>, Errno> {
        let mut padded_name = [0; libc::IFNAMSIZ];
        // Leaves room for the null byte at the end.
        let Some(target) = padded_name[..libc::IFNAMSIZ - 1].get_mut(..name.len()) else {
            return Ok(None);
        };
        target.copy_from_slice(name);
        // The ioctl works on sockets of every family, and a systemd unit may allow only some
        // (RestrictAddressFamilies=).
        let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Some(Ethtool { socket, name: padded_name }))
    }

    pub fn channels(&self) -> Result<[u32; 4], Errno> {
        let mut buffer = new_command(GET_CHANNELS, CHANNELS);
        self.ioctl(&mut buffer)?;
        let counts = words(buffer.get(CHANNEL_COUNTS..).unwrap_or_default());
        counts.try_into().map_err(|_| Errno::IO)
    }

    pub fn set_channels(&self, counts: [u32; 4]) -> Result<(), Errno> {
        let mut buffer = new_command(GET_CHANNELS, CHANNELS);
        self.ioctl(&mut buffer)?;
        put_u32(&mut buffer, 0, SET_CHANNELS);
        for (index, count) in counts.into_iter().enumerate() {
            put_u32(&mut buffer, CHANNEL_COUNTS + 4 * index, count);
        }
        self.ioctl(&mut buffer)
    }

    /// Reduces the interface to one channel that receives packets.
    pub fn set_one_channel(&self) -> Result<(), Errno> {
        // Drivers have channels for both directions, or for one each.
        self.set_channels(match self.channels()? {
            [_, transmit, other, 0] => [1, transmit, other, 0],
            [receive, transmit, other, _] => [receive, transmit, other, 1],
        })
    }

    pub fn rss(&self) -> Result<RssConfig, Errno> {
        let mut header = new_command(GET_SPREAD, SPREAD);
        self.ioctl(&mut header)?;
        let (table, key) = (u32_at(&header, TABLE_LENGTH), u32_at(&header, KEY_LENGTH));
        if table > MAX_TABLE || key > MAX_KEY {
            return Err(Errno::TOOBIG);
        }
        let table_end = SPREAD + 4 * length(table);
        let mut buffer = new_command(GET_SPREAD, table_end + length(key));
        put_u32(&mut buffer, TABLE_LENGTH, table);
        put_u32(&mut buffer, KEY_LENGTH, key);
        // Unless both lengths are set, the kernel returns only the lengths.
        self.ioctl(&mut buffer)?;
        let part = |range| buffer.get::<std::ops::Range<usize>>(range).unwrap_or_default();
        Ok(RssConfig {
            table: words(part(SPREAD..table_end)),
            key: part(table_end..buffer.len()).to_vec(),
            hash: part(HASH..HASH + 2).try_into().map_err(|_| Errno::IO)?,
        })
    }

    /// Returns the ntuple rules, as the kernel encodes them. Fails with E2BIG if there are more than `max`.
    pub fn ntuple_rules(&self, max: u32) -> Result<Vec<Vec<u8>>, Errno> {
        let mut buffer = new_command(GET_RULE_COUNT, RULES + PADDING);
        self.ioctl(&mut buffer)?;
        let count = u32_at(&buffer, COUNT);
        if count > max {
            return Err(Errno::TOOBIG);
        }
        let mut buffer = new_command(GET_RULES, RULES + PADDING + 4 * length(count));
        put_u32(&mut buffer, COUNT, count);
        self.ioctl(&mut buffer)?;
        let filled = length(u32_at(&buffer, COUNT).min(count));
        let locations = words(buffer.get(RULES..).unwrap_or_default());
        let mut rules = Vec::new();
        for location in locations.into_iter().take(filled) {
            let mut buffer = new_command(GET_RULE, RULES + PADDING);
            put_u32(&mut buffer, PLACE, location);
            self.ioctl(&mut buffer)?;
            rules.extend(buffer.get(RULE).map(<[u8]>::to_vec));
        }
        Ok(rules)
    }

    /// Executes the command in the first word of the buffer. The buffer must be as long as the lengths in it say.
    #[cfg(target_pointer_width = "64")]
    #[expect(unsafe_code, reason = "no library in the tree has SIOCETHTOOL")]
    fn ioctl(&self, buffer: &mut [u8]) -> Result<(), Errno> {
        let mut request = Ifreq { name: self.name, data: buffer.as_mut_ptr(), rest: [0; 2] };
        // SAFETY: the kernel reads and writes the request, which is as long as its `struct ifreq`, and of the buffer
        // what the command and the lengths in it say (net/ethtool/ioctl.c): each caller above makes it that long. Both
        // live until the call returns, and the kernel keeps no pointer.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), IOCTL.into(), &raw mut request) };
        match result {
            0.. => Ok(()),
            _ => Err(last_errno()),
        }
    }

    #[cfg(not(target_pointer_width = "64"))]
    fn ioctl(&self, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}

fn new_command(number: u32, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    put_u32(&mut buffer, 0, number);
    buffer
}

fn put_u32(buffer: &mut [u8], offset: usize, word: u32) {
    if let Some(target) = buffer.get_mut(offset..offset + 4) {
        target.copy_from_slice(&word.to_ne_bytes());
    }
}

fn u32_at(buffer: &[u8], offset: usize) -> u32 {
    let bytes = buffer.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let chunks = bytes.chunks_exact(4);
    chunks.map(|chunk| u32_at(chunk, 0)).collect()
}

fn length(number: u32) -> usize {
    usize::try_from(number).unwrap_or_default()
}
