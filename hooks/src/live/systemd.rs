//! systemd's private socket, where it answers method calls without a bus in between, and only root may
//! connect (systemd, `src/core/dbus.c`). Messages are those of the D-Bus specification ("Message
//! Protocol", little endian).

use std::io::{self, BufRead, BufReader, Read, Write};
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
}

impl Systemd {
    /// `None` if systemd is not there.
    pub(crate) fn connect(socket: &Path, scope: &str) -> Result<Option<Self>> {
        let stream = match connect_within(socket, TIMEOUT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            stream => stream.with_context(|| call_context(scope))?,
        };
        let mut systemd = Systemd { stream: BufReader::new(stream), scope: scope.to_owned() };
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
        self.stream.by_ref().take(4096).read_until(b'\n', &mut line)?;
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
        let reply = self.call(&path, "org.freedesktop.DBus.Properties", "Get", "ss", &body.0)?;
        // A variant begins with the type of its value, padded like the value.
        let policy = reply.strip_prefix(b"\x01s\0\0").and_then(read_text);
        match policy.as_deref() {
            Some("strict" | "closed") => Ok(true),
            Some("auto") => Ok(false),
            other => Err(self.refused_error(&format!("unknown DevicePolicy {other:?}"))),
        }
    }

    /// Adds devices to the scope's list, until the scope ends.
    pub(crate) fn allow_devices(&mut self, rules: &[CgroupRule]) -> Result<()> {
        let body = set_device_allow(&self.scope, rules);
        let interface = "org.freedesktop.systemd1.Manager";
        self.call(MANAGER, interface, "SetUnitProperties", "sba(sv)", &body).map(drop)
    }

    fn refused_error(&self, message: &str) -> Error {
        error!("asking systemd about {}: {message}", self.scope)
    }

    /// Calls a method and returns the body of the reply.
    fn call(
        &mut self,
        path: &str,
        interface: &str,
        member: &str,
        signature: &str,
        body: &[u8],
    ) -> Result<Vec<u8>> {
        let message = encode_call(path, interface, member, signature, body);
        let (kind, reply) = self.exchange(&message).with_context(|| call_context(&self.scope))?;
        if kind == METHOD_RETURN {
            return Ok(reply);
        }
        Err(self.refused_error(&read_text(&reply).unwrap_or_default()))
    }

    /// Returns the type and the body of the reply. This connection has only one call at a time, so the next reply answers
    /// it.
    fn exchange(&mut self, message: &[u8]) -> io::Result<(u8, Vec<u8>)> {
        self.stream.get_mut().write_all(message)?;
        for _ in 0..MAX_MESSAGES {
            let reply = self.receive()?;
            if matches!(reply.0, METHOD_RETURN | ERROR) {
                return Ok(reply);
            }
        }
        Err(io::Error::other(format!("no reply within {MAX_MESSAGES} messages")))
    }

    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut fixed = [0; FIXED];
        self.stream.read_exact(&mut fixed)?;
        let lengths = read_number(&fixed[4..]).zip(read_number(&fixed[12..]));
        let Some((body_length, fields_length)) = lengths.filter(|_| fixed[0] == b'l') else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed message"));
        };
        let mut fields = vec![0; fields_length.next_multiple_of(8)];
        self.stream.read_exact(&mut fields)?;
        let mut body = vec![0; body_length];
        self.stream.read_exact(&mut body)?;
        Ok((fixed[1], body))
    }
}

/// A length at the beginning of `bytes`.
fn read_number(bytes: &[u8]) -> Option<usize> {
    let number = u32::from_le_bytes(*bytes.first_chunk()?);
    usize::try_from(number).ok().filter(|length| *length <= MAX_MESSAGE)
}

/// A text at the beginning of `bytes`.
fn read_text(bytes: &[u8]) -> Option<String> {
    let text = bytes.get(4..)?.get(..read_number(bytes)?)?;
    String::from_utf8(text.to_vec()).ok()
}

fn call_context(scope: &str) -> String {
    format!("asking systemd about {scope} over {SOCKET}")
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

/// Encodes a method call. The serial number distinguishes calls that wait at the same time, and none do.
fn encode_call(path: &str, interface: &str, member: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut message = DbusWriter(vec![b'l', METHOD_CALL, 0, 1]);
    message.number(u32::try_from(body.len()).unwrap_or(u32::MAX));
    message.number(1);
    message.array(8, |fields| {
        // The codes of "Header Fields".
        for (code, kind, value) in
            [(1, "o", path), (2, "s", interface), (3, "s", member), (6, "s", DESTINATION)]
        {
            fields.align(8);
            fields.0.push(code);
            fields.signature(kind);
            fields.text(value);
        }
        fields.align(8);
        fields.0.push(8);
        fields.signature("g");
        fields.signature(signature);
    });
    message.align(8);
    message.0.extend(body);
    message.0
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
    fn reply(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut message = DbusWriter(vec![b'l', kind, 1, 1]);
        message.number(u32::try_from(body.len()).unwrap());
        message.number(77);
        message.array(8, |fields| {
            fields.align(8);
            fields.0.push(5);
            fields.signature("u");
            fields.number(1);
            fields.align(8);
            fields.0.push(8);
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
        let mut signal = reply(4, &text_body("noise"));
        signal.extend(reply(METHOD_RETURN, &variant_body("strict")));
        let done = reply(METHOD_RETURN, &[]);
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
            let answer = reply(METHOD_RETURN, &variant_body(word));
            let server = play(&dir, "OK 0\r\n", vec![answer]);
            assert_eq!(connect(&dir).is_closed().unwrap(), is_closed);
            server.join().unwrap();
        }
    }

    #[test]
    fn what_systemd_refuses_is_said_in_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let answer = reply(ERROR, &text_body("Unit not loaded."));
        let server = play(&dir, "OK 0\r\n", vec![answer]);
        let message =
            ErrorChain(&connect(&dir).allow_devices(&[rule("r")]).unwrap_err()).to_string();
        assert!(message.contains("Unit not loaded."), "{message}");
        server.join().unwrap();
    }

    #[test]
    fn nonsense_ends_the_conversation() {
        let dir = tempfile::tempdir().unwrap();
        let server = play(&dir, "REJECTED EXTERNAL\r\n", Vec::new());
        let refused = Systemd::connect(&dir.path().join("private"), SCOPE);
        assert!(ErrorChain(&refused.unwrap_err()).to_string().contains("REJECTED"));
        server.join().unwrap();

        let mut huge = reply(METHOD_RETURN, &[]);
        huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut big_endian = reply(METHOD_RETURN, &[]);
        big_endian[0] = b'B';
        for answer in [huge, big_endian] {
            let dir = tempfile::tempdir().unwrap();
            let server = play(&dir, "OK 0\r\n", vec![answer]);
            let message = ErrorChain(&connect(&dir).is_closed().unwrap_err()).to_string();
            assert!(message.contains("malformed message"), "{message}");
            server.join().unwrap();
        }
    }

    #[test]
    fn a_list_of_devices_has_the_specified_form() {
        // sb, with a(sv) of one property, which is a(ss) of one entry.
        let mut form = b"\x07\0\0\0a.scope\0\x01\0\0\0".to_vec();
        form.extend(b"\x3b\0\0\0\0\0\0\0\x0b\0\0\0DeviceAllow\0\x05a(ss)\0\0");
        form.extend(b"\x1b\0\0\0\0\0\0\0\x0f\0\0\0/dev/char/243:0\0\x02\0\0\0rw\0");
        let body = set_device_allow("a.scope", &[rule("rw")]);
        assert_eq!(body.escape_ascii().to_string(), form.escape_ascii().to_string());
    }

    #[test]
    fn a_unit_s_name_becomes_a_part_of_a_path() {
        assert_eq!(escape("libpod-1.scope"), "libpod_2d1_2escope");
        assert_eq!(escape("1a"), "_31a");
    }
}
