//! systemd's private socket, where it answers method calls without a bus in between, and only root may
//! connect (systemd, `src/core/dbus.c`). Messages are those of the D-Bus specification ("Message
//! Protocol", little endian).

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use onload_sys::error::{Context, Error, Result, error};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::decide::verified_node::CgroupRule;

pub(crate) const SOCKET: &str = "/run/systemd/private";

/// Timeout of connecting, and of one read or write; a reply takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of one message that are read.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Messages that are skipped while waiting for a reply.
const MAX_MESSAGES: usize = 1000;

const DESTINATION: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";

/// Connects within `timeout`. A blocking connect(2) waits for ever while the listener's queue is full.
fn connect_within(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    let deadline = Instant::now() + timeout;
    loop {
        match rustix::net::connect(&socket, &address) {
            Err(Errno::AGAIN) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            connected => break connected?,
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A connection, for one scope.
#[derive(Debug)]
pub(crate) struct Systemd {
    stream: BufReader<UnixStream>,
    scope: String,
    serial: u32,
}

impl Systemd {
    /// `None` if systemd is not there.
    pub(crate) fn connect(socket: &Path, scope: &str) -> Result<Option<Self>> {
        let stream = match connect_within(socket, TIMEOUT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            stream => stream.with_context(|| call_context(scope))?,
        };
        let mut systemd =
            Systemd { stream: BufReader::new(stream), scope: scope.to_owned(), serial: 0 };
        systemd.authenticate().with_context(|| call_context(scope))?;
        Ok(Some(systemd))
    }

    /// The handshake ("Authentication Protocol"): EXTERNAL, where the kernel vouches for the user.
    fn authenticate(&mut self) -> io::Result<()> {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let user = rustix::process::geteuid().as_raw().to_string();
        let name: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        self.stream.get_mut().write_all(format!("\0AUTH EXTERNAL {name}\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 4096 {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        if !line.starts_with(b"OK ") {
            let reply = String::from_utf8_lossy(&line).trim().to_owned();
            return Err(io::Error::other(format!("authentication rejected: {reply}")));
        }
        self.stream.get_mut().write_all(b"BEGIN\r\n")
    }

    /// Whether the scope allows only the devices of its list. An open scope would be restricted by a
    /// first entry.
    pub(crate) fn is_closed(&mut self) -> Result<bool> {
        let mut body = DbusWriter::default();
        body.text("org.freedesktop.systemd1.Scope");
        body.text("DevicePolicy");
        let path = format!("{MANAGER}/unit/{}", escape(&self.scope));
        let call = DbusCall {
            path: &path,
            interface: "org.freedesktop.DBus.Properties",
            member: "Get",
            signature: "ss",
        };
        let reply = self.call(&call, &body.0)?;
        let mut variant = DbusReader::new(&reply);
        let is_text = variant.signature().is_some_and(|signature| signature == "s");
        match variant.text().filter(|_| is_text).as_deref() {
            Some("strict" | "closed") => Ok(true),
            Some("auto") => Ok(false),
            other => Err(self.refused_error(&format!("unknown DevicePolicy {other:?}"))),
        }
    }

    /// Adds devices to the scope's list, until the scope ends.
    pub(crate) fn allow_devices(&mut self, rules: &[CgroupRule]) -> Result<()> {
        let body = set_device_allow(&self.scope, rules);
        let call = DbusCall {
            path: MANAGER,
            interface: "org.freedesktop.systemd1.Manager",
            member: "SetUnitProperties",
            signature: "sba(sv)",
        };
        self.call(&call, &body).map(drop)
    }

    fn refused_error(&self, message: &str) -> Error {
        error!("asking systemd about {}: {message}", self.scope)
    }

    fn call(&mut self, call: &DbusCall<'_>, body: &[u8]) -> Result<Vec<u8>> {
        self.serial += 1;
        let reply =
            self.exchange(call, body, self.serial).with_context(|| call_context(&self.scope))?;
        if reply.kind == METHOD_RETURN {
            return Ok(reply.body);
        }
        let text = DbusReader::new(&reply.body).text().unwrap_or_default();
        Err(self.refused_error(&format!("{}: {text}", reply.error_name)))
    }

    fn exchange(&mut self, call: &DbusCall<'_>, body: &[u8], serial: u32) -> io::Result<DbusReply> {
        self.stream.get_mut().write_all(&call.message(serial, body))?;
        for _ in 0..MAX_MESSAGES {
            let reply = self.receive()?;
            let is_answer = matches!(reply.kind, METHOD_RETURN | ERROR);
            if is_answer && reply.reply_serial == serial {
                return Ok(reply);
            }
        }
        Err(io::Error::other(format!("no reply within {MAX_MESSAGES} messages")))
    }

    fn receive(&mut self) -> io::Result<DbusReply> {
        let mut fixed = [0; FIXED];
        self.stream.read_exact(&mut fixed)?;
        let (length, body) = header_lengths(&fixed).ok_or_else(bad_message_error)?;
        let mut fields = vec![0; length.next_multiple_of(8)];
        self.stream.read_exact(&mut fields)?;
        let mut body = vec![0; body];
        self.stream.read_exact(&mut body)?;
        let mut reply =
            DbusReply { kind: fixed[1], reply_serial: 0, error_name: String::new(), body };
        reply.read_fields(&fields[..length]).ok_or_else(bad_message_error)?;
        Ok(reply)
    }
}

fn call_context(scope: &str) -> String {
    format!("asking systemd about {scope} over {SOCKET}")
}

fn bad_message_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed message")
}

/// A unit's name as part of an object path (systemd, `bus_label_escape`).
fn escape(name: &str) -> String {
    let mut path = String::with_capacity(name.len() * 2);
    for (index, byte) in name.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphabetic() || index > 0 && byte.is_ascii_digit();
        if is_plain {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("_{byte:02x}"));
        }
    }
    path
}

/// The body of `SetUnitProperties(scope, runtime, [("DeviceAllow", [(node, access)])])`.
fn set_device_allow(scope: &str, rules: &[CgroupRule]) -> Vec<u8> {
    let mut body = DbusWriter::default();
    body.text(scope);
    body.number(1);
    body.array(8, |properties| {
        properties.align(8);
        properties.text("DeviceAllow");
        properties.signature("a(ss)");
        properties.array(8, |entries| {
            for rule in rules {
                entries.align(8);
                entries.text(&format!("/dev/char/{}", rule.numbers()));
                entries.text(&rule.access.to_string());
            }
        });
    });
    body.0
}

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// Bytes before the header fields.
const FIXED: usize = 16;

mod field {
    pub(super) const PATH: u8 = 1;
    pub(super) const INTERFACE: u8 = 2;
    pub(super) const MEMBER: u8 = 3;
    pub(super) const ERROR_NAME: u8 = 4;
    pub(super) const REPLY_SERIAL: u8 = 5;
    pub(super) const DESTINATION: u8 = 6;
    pub(super) const SIGNATURE: u8 = 8;
}

struct DbusCall<'a> {
    path: &'a str,
    interface: &'a str,
    member: &'a str,
    signature: &'a str,
}

impl DbusCall<'_> {
    fn message(&self, serial: u32, body: &[u8]) -> Vec<u8> {
        let mut message = DbusWriter(vec![b'l', METHOD_CALL, 0, 1]);
        message.number(u32::try_from(body.len()).unwrap_or(u32::MAX));
        message.number(serial);
        message.array(8, |fields| {
            for (code, kind, value) in [
                (field::PATH, "o", self.path),
                (field::INTERFACE, "s", self.interface),
                (field::MEMBER, "s", self.member),
                (field::DESTINATION, "s", DESTINATION),
            ] {
                fields.align(8);
                fields.0.push(code);
                fields.signature(kind);
                fields.text(value);
            }
            fields.align(8);
            fields.0.push(field::SIGNATURE);
            fields.signature("g");
            fields.signature(self.signature);
        });
        message.align(8);
        message.0.extend(body);
        message.0
    }
}

#[derive(Debug)]
struct DbusReply {
    kind: u8,
    reply_serial: u32,
    error_name: String,
    body: Vec<u8>,
}

impl DbusReply {
    fn read_fields(&mut self, fields: &[u8]) -> Option<()> {
        let mut reader = DbusReader::new(fields);
        while reader.offset < fields.len() {
            reader.align(8);
            let code = reader.byte()?;
            match (code, reader.signature()?.as_str()) {
                (field::REPLY_SERIAL, "u") => self.reply_serial = reader.number()?,
                (field::ERROR_NAME, "s") => self.error_name = reader.text()?,
                (_, "s" | "o") => reader.text().map(drop)?,
                (_, "g") => reader.signature().map(drop)?,
                (_, "u") => reader.number().map(drop)?,
                _ => return None,
            }
        }
        Some(())
    }
}

/// Bytes of the header fields, without what pads them to a multiple of 8, and of the body.
fn header_lengths(fixed: &[u8; FIXED]) -> Option<(usize, usize)> {
    let length = |offset| {
        let number = DbusReader { bytes: fixed, offset }.number()?;
        usize::try_from(number).ok().filter(|length| *length <= MAX_MESSAGE)
    };
    let (body, fields) = (length(4)?, length(12)?);
    (fixed[0] == b'l').then_some((fields, body))
}

/// Values in wire format ("Marshaling").
#[derive(Default)]
struct DbusWriter(Vec<u8>);

impl DbusWriter {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.0.extend(signature.as_bytes());
        self.0.push(0);
    }

    /// An array whose elements start at multiples of `align`; its length counts from the first one.
    fn array(&mut self, align: usize, elements: impl FnOnce(&mut DbusWriter)) {
        self.number(0);
        let length_at = self.0.len() - 4;
        self.align(align);
        let begin = self.0.len();
        elements(self);
        let length = u32::try_from(self.0.len() - begin).unwrap_or(u32::MAX);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }
}

struct DbusReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> DbusReader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        DbusReader { bytes, offset: 0 }
    }

    fn align(&mut self, to: usize) {
        self.offset = self.offset.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.offset..self.offset.checked_add(length)?)?;
        self.offset += length;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        self.string(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        self.string(length)
    }

    fn string(&mut self, length: usize) -> Option<String> {
        let text = self.take(length)?;
        self.take(1)?;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_sys::text::ErrorChain;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    const SCOPE: &str = "libpod-c0ffee.scope";

    #[test]
    fn connecting_to_a_full_queue_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("private");
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting = connect_within(&path, TIMEOUT).unwrap();
        let error = connect_within(&path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(listener);
        let error = connect_within(&path, TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    fn rule(access: &str) -> CgroupRule {
        CgroupRule { major: 243, minor: 0, access: access.to_owned().try_into().unwrap() }
    }

    /// A message as systemd sends it.
    fn reply(kind: u8, serial: u32, error: Option<&str>, body: &[u8]) -> Vec<u8> {
        let mut message = DbusWriter(vec![b'l', kind, 1, 1]);
        message.number(u32::try_from(body.len()).unwrap());
        message.number(77);
        message.array(8, |fields| {
            fields.align(8);
            fields.0.push(field::REPLY_SERIAL);
            fields.signature("u");
            fields.number(serial);
            if let Some(name) = error {
                fields.align(8);
                fields.0.push(field::ERROR_NAME);
                fields.signature("s");
                fields.text(name);
            }
            fields.align(8);
            fields.0.push(field::SIGNATURE);
            fields.signature("g");
            fields.signature("s");
        });
        message.align(8);
        message.0.extend(body);
        message.0
    }

    fn text_body(text: &str) -> Vec<u8> {
        let mut body = DbusWriter::default();
        body.text(text);
        body.0
    }

    fn variant_body(text: &str) -> Vec<u8> {
        let mut body = DbusWriter::default();
        body.signature("s");
        body.text(text);
        body.0
    }

    /// Plays systemd for one connection: accepts the handshake and replies with `replies`. Returns
    /// everything it received.
    fn play(
        dir: &tempfile::TempDir,
        hello: &'static str,
        replies: Vec<Vec<u8>>,
    ) -> JoinHandle<Vec<u8>> {
        let listener = UnixListener::bind(dir.path().join("private")).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = Vec::new();
            let hear = |stream: &mut UnixStream, heard: &mut Vec<u8>| {
                let mut buffer = [0; 65536];
                let read = stream.read(&mut buffer).unwrap();
                heard.extend(&buffer[..read]);
            };
            while !heard.ends_with(b"\r\n") {
                hear(&mut stream, &mut heard);
            }
            stream.write_all(hello.as_bytes()).unwrap();
            for reply in replies {
                let before = heard.len();
                while heard.len() < before + FIXED || heard.ends_with(b"BEGIN\r\n") {
                    hear(&mut stream, &mut heard);
                }
                stream.write_all(&reply).unwrap();
            }
            heard
        })
    }

    fn connect(dir: &tempfile::TempDir) -> Systemd {
        Systemd::connect(&dir.path().join("private"), SCOPE).unwrap().unwrap()
    }

    #[test]
    fn without_systemd_there_is_nobody_to_ask() {
        let dir = tempfile::tempdir().unwrap();
        let none = Systemd::connect(&dir.path().join("private"), SCOPE).unwrap();
        assert!(none.is_none());
    }

    #[test]
    fn the_policy_is_asked_for_and_a_device_is_added() {
        let dir = tempfile::tempdir().unwrap();
        // A message that is not the reply to the call is skipped.
        let mut signal = reply(4, 9, None, &text_body("noise"));
        signal.extend(reply(METHOD_RETURN, 1, None, &variant_body("strict")));
        let done = reply(METHOD_RETURN, 2, None, &[]);
        let server = play(&dir, "OK 0123\r\n", vec![signal, done]);
        let mut systemd = connect(&dir);
        assert!(systemd.is_closed().unwrap());
        systemd.allow_devices(&[rule("rw")]).unwrap();
        let heard = server.join().unwrap();
        let heard = String::from_utf8_lossy(&heard).into_owned();
        assert!(heard.starts_with("\0AUTH EXTERNAL "), "{heard:?}");
        for word in [
            "/org/freedesktop/systemd1/unit/libpod_2dc0ffee_2escope",
            "DevicePolicy",
            "SetUnitProperties",
            "libpod-c0ffee.scope",
            "/dev/char/243:0",
        ] {
            assert!(heard.contains(word), "{word}: {heard:?}");
        }
    }

    #[test]
    fn an_open_scope_is_told_from_a_closed_one() {
        for (word, is_closed) in [("auto", false), ("closed", true)] {
            let dir = tempfile::tempdir().unwrap();
            let answer = reply(METHOD_RETURN, 1, None, &variant_body(word));
            let server = play(&dir, "OK 0\r\n", vec![answer]);
            assert_eq!(connect(&dir).is_closed().unwrap(), is_closed);
            server.join().unwrap();
        }
    }

    #[test]
    fn what_systemd_refuses_is_said_in_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let name = "org.freedesktop.systemd1.NoSuchUnit";
        let answer = reply(ERROR, 1, Some(name), &text_body("Unit not loaded."));
        let server = play(&dir, "OK 0\r\n", vec![answer]);
        let message =
            ErrorChain(&connect(&dir).allow_devices(&[rule("r")]).unwrap_err()).to_string();
        assert!(message.contains("NoSuchUnit: Unit not loaded."), "{message}");
        server.join().unwrap();
    }

    #[test]
    fn nonsense_ends_the_conversation() {
        let dir = tempfile::tempdir().unwrap();
        let server = play(&dir, "REJECTED EXTERNAL\r\n", Vec::new());
        let refused = Systemd::connect(&dir.path().join("private"), SCOPE);
        assert!(ErrorChain(&refused.unwrap_err()).to_string().contains("REJECTED"));
        server.join().unwrap();

        let mut huge = reply(METHOD_RETURN, 1, None, &[]);
        huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut big_endian = reply(METHOD_RETURN, 1, None, &[]);
        big_endian[0] = b'B';
        let mut odd_field = reply(METHOD_RETURN, 1, None, &[]);
        odd_field[18] = b'x';
        for answer in [huge, big_endian, odd_field] {
            let dir = tempfile::tempdir().unwrap();
            let server = play(&dir, "OK 0\r\n", vec![answer]);
            let message = ErrorChain(&connect(&dir).is_closed().unwrap_err()).to_string();
            assert!(message.contains("malformed message"), "{message}");
            server.join().unwrap();
        }
    }

    #[test]
    fn a_list_of_devices_has_the_specified_form() {
        let body = set_device_allow("a.scope", &[rule("rw")]);
        let mut reader = DbusReader::new(&body);
        assert_eq!(reader.text().unwrap(), "a.scope");
        assert_eq!(reader.number(), Some(1));
        let properties = reader.number().unwrap();
        reader.align(8);
        assert_eq!(reader.offset + usize::try_from(properties).unwrap(), body.len());
        assert_eq!(reader.text().unwrap(), "DeviceAllow");
        assert_eq!(reader.signature().unwrap(), "a(ss)");
        let entries = reader.number().unwrap();
        reader.align(8);
        assert_eq!(reader.offset + usize::try_from(entries).unwrap(), body.len());
        assert_eq!(reader.text().unwrap(), "/dev/char/243:0");
        assert_eq!(reader.text().unwrap(), "rw");
    }

    #[test]
    fn a_unit_s_name_becomes_a_part_of_a_path() {
        assert_eq!(escape("libpod-1.scope"), "libpod_2d1_2escope");
        assert_eq!(escape("1a"), "_31a");
    }
}
