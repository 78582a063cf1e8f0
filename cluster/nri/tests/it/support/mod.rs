//! A runtime's side of NRI, written from the protocol and not with the code under test: frames, ttrpc and
//! protobuf by hand. And hosts whose files are a test's own.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of it"
)]
#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

pub mod host;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_onload-nri");
const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;
/// No test waits so long for anything that happens.
const NEVER: Duration = Duration::from_secs(60);

/// A protobuf message that is being written (protobuf.dev, "Encoding").
#[derive(Clone, Default)]
pub struct Proto(pub Vec<u8>);

impl Proto {
    pub fn new() -> Self {
        Proto::default()
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn number(mut self, tag: u64, value: u64) -> Self {
        self.varint(tag << 3);
        self.varint(value);
        self
    }

    pub fn bytes(mut self, tag: u64, value: &[u8]) -> Self {
        self.varint(tag << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    pub fn text(self, tag: u64, value: &str) -> Self {
        self.bytes(tag, value.as_bytes())
    }

    pub fn texts(self, tag: u64, values: &[&str]) -> Self {
        values
            .iter()
            .fold(self, |proto, value| proto.text(tag, value))
    }

    pub fn message(self, tag: u64, value: Proto) -> Self {
        self.bytes(tag, &value.0)
    }

    pub fn map(self, tag: u64, pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(self, |proto, (key, value)| {
            proto.message(tag, Proto::new().text(1, key).text(2, value))
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(u64, Value)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Fields {
    pub fn read(bytes: &[u8]) -> Fields {
        let mut at = 0;
        let varint = |at: &mut usize| {
            let mut value = 0;
            for shift in (0..64).step_by(7) {
                let byte = bytes[*at];
                *at += 1;
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        };
        let mut fields = Vec::new();
        while at < bytes.len() {
            let key = varint(&mut at);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut at)),
                2 => {
                    let length = varint(&mut at) as usize;
                    at += length;
                    Value::Bytes(bytes[at - length..at].to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, value));
        }
        Fields(fields)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn number(&self, tag: u64) -> u64 {
        let found = self.0.iter().rev().find(|(own, _)| *own == tag);
        match found {
            Some((_, Value::Number(number))) => *number,
            Some(other) => panic!("{other:?} is no number"),
            None => 0,
        }
    }

    pub fn all_bytes(&self, tag: u64) -> Vec<Vec<u8>> {
        let own = self.0.iter().filter(|(own, _)| *own == tag);
        own.map(|(_, value)| match value {
            Value::Bytes(bytes) => bytes.clone(),
            Value::Number(number) => panic!("{number} is no text"),
        })
        .collect()
    }

    pub fn bytes(&self, tag: u64) -> Vec<u8> {
        self.all_bytes(tag).pop().unwrap_or_default()
    }

    pub fn texts(&self, tag: u64) -> Vec<String> {
        let all = self.all_bytes(tag).into_iter();
        all.map(|bytes| String::from_utf8(bytes).unwrap()).collect()
    }

    pub fn text(&self, tag: u64) -> String {
        self.texts(tag).pop().unwrap_or_default()
    }

    pub fn messages(&self, tag: u64) -> Vec<Fields> {
        let all = self.all_bytes(tag);
        all.iter().map(|bytes| Fields::read(bytes)).collect()
    }

    pub fn message(&self, tag: u64) -> Fields {
        self.messages(tag).pop().unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: u64,
    pub message: String,
}

pub struct Runtime {
    stream: UnixStream,
    /// Bytes that came on each connection and are of no whole message.
    begun: [Vec<u8>; 2],
    last_call: u32,
    pub frame: usize,
}

impl Runtime {
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(NEVER)).unwrap();
        stream.set_write_timeout(Some(NEVER)).unwrap();
        Runtime {
            stream,
            begun: [Vec::new(), Vec::new()],
            last_call: 0,
            frame: usize::MAX,
        }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The next message: connection, stream, type, body. `None` where the plugin closed the connection.
    pub fn receive(&mut self) -> Option<(u32, u32, u8, Vec<u8>)> {
        loop {
            for (index, begun) in self.begun.iter_mut().enumerate() {
                if begun.len() < 10 {
                    continue;
                }
                let number = |at: usize| u32::from_be_bytes(begun[at..at + 4].try_into().unwrap());
                let (length, stream) = (number(0) as usize, number(4));
                if begun.len() >= 10 + length {
                    let kind = begun[8];
                    let rest = begun.split_off(10 + length);
                    let message = std::mem::replace(begun, rest);
                    return Some((index as u32 + 1, stream, kind, message[10..].to_vec()));
                }
            }
            let mut header = [0; 8];
            match self.stream.read_exact(&mut header) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("reading from the plugin: {error}"),
            }
            let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            let (connection, length) = (number(0), number(4));
            assert!(
                length <= 4096,
                "a frame of {length} bytes is an error to a runtime"
            );
            let mut content = vec![0; length as usize];
            self.stream.read_exact(&mut content).unwrap();
            self.begun[connection as usize - 1].extend(content);
        }
    }

    pub fn send(&mut self, connection: u32, stream: u32, kind: u8, body: &[u8]) {
        let mut message = (body.len() as u32).to_be_bytes().to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(body);
        for content in message.chunks(self.frame) {
            let mut bytes = connection.to_be_bytes().to_vec();
            bytes.extend((content.len() as u32).to_be_bytes());
            bytes.extend(content);
            self.stream.write_all(&bytes).unwrap();
        }
    }

    /// Takes the registration: the plugin's name and index.
    pub fn accept(&mut self) -> (String, String) {
        let (name, index, stream) = self.registration();
        self.send(RUNTIME, stream, 2, &Proto::new().bytes(2, b"").0);
        (name, index)
    }

    /// The registration, which is not answered; its stream last.
    pub fn registration(&mut self) -> (String, String, u32) {
        let (connection, stream, kind, body) = self.receive().expect("a registration");
        assert_eq!((connection, stream, kind), (RUNTIME, 1, 1));
        let call = Fields::read(&body);
        assert_eq!(call.text(1), "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(call.text(2), "RegisterPlugin");
        let plugin = Fields::read(&call.bytes(3));
        (plugin.text(1), plugin.text(2), stream)
    }

    pub fn refuse(&mut self, stream: u32, message: &str) {
        let status = Proto::new().number(1, 2).text(2, message);
        self.send(RUNTIME, stream, 2, &Proto::new().message(1, status).0);
    }

    /// Calls a method of the plugin, and does not wait for the answer.
    pub fn begin(&mut self, service: &str, method: &str, payload: &Proto) -> u32 {
        let two_seconds = 2_000_000_000;
        self.begin_within(service, method, payload, two_seconds)
    }

    pub fn begin_within(
        &mut self,
        service: &str,
        method: &str,
        payload: &Proto,
        nanos: u64,
    ) -> u32 {
        self.last_call += if self.last_call == 0 { 1 } else { 2 };
        let call = Proto::new()
            .text(1, service)
            .text(2, method)
            .bytes(3, &payload.0)
            .number(4, nanos);
        self.send(PLUGIN, self.last_call, 1, &call.0);
        self.last_call
    }

    pub fn answer(&mut self, stream: u32) -> Result<Fields, Status> {
        let (connection, answered, kind, body) = self.receive().expect("an answer");
        assert_eq!((connection, answered, kind), (PLUGIN, stream, 2));
        let response = Fields::read(&body);
        let status = response.message(1);
        match status.number(1) {
            0 => Ok(Fields::read(&response.bytes(2))),
            code => Err(Status {
                code,
                message: status.text(2),
            }),
        }
    }

    pub fn call(&mut self, method: &str, payload: &Proto) -> Result<Fields, Status> {
        let stream = self.begin("nri.pkg.api.v1alpha1.Plugin", method, payload);
        self.answer(stream)
    }

    pub fn configure(&mut self, name: &str, version: &str) -> Result<Fields, Status> {
        let payload = Proto::new()
            .text(2, name)
            .text(3, version)
            .number(4, 5000)
            .number(5, 2000);
        self.call("Configure", &payload)
    }

    /// Takes the registration, and does what a runtime does before it asks of containers.
    pub fn set_up(&mut self, name: &str, version: &str) {
        self.accept();
        assert_eq!(self.configure(name, version).unwrap().number(2), 8);
        assert!(self.call("Synchronize", &Proto::new()).unwrap().is_empty());
    }

    pub fn create(&mut self, payload: &Proto) -> Result<Fields, Status> {
        Ok(self.call("CreateContainer", payload)?.message(1))
    }
}

pub fn pod(annotations: &[(&str, &str)]) -> Proto {
    Proto::new()
        .text(1, "p1")
        .text(2, "shop")
        .text(3, "0000-1")
        .text(4, "default")
        .map(6, annotations)
        .text(7, "runc")
}

/// The container `server` of it, without environment and mounts.
pub fn container(id: &str) -> Proto {
    Proto::new()
        .text(1, id)
        .text(2, "p1")
        .text(3, "server")
        .number(4, 1)
        .texts(7, &["/bin/server", "-v"])
}

pub fn creation(pod: Proto, container: Proto) -> Proto {
    Proto::new().message(1, pod).message(2, container)
}

pub struct Plugin {
    child: Child,
    pub log: PathBuf,
    dir: tempfile::TempDir,
}

impl Plugin {
    /// Connects to a socket of the test's own, which has to be listened at.
    pub fn start(words: &[&str]) -> (Plugin, UnixListener) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nri.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut command = Command::new(PROGRAM);
        command.arg("--socket").arg(&socket).args(words);
        (Plugin::spawn(command, dir), listener)
    }

    /// As a runtime launches it: descriptor 3 is a socket.
    pub fn launch(name: &str, index: &str) -> (Plugin, Runtime) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$0\" 3<&0 </dev/null", PROGRAM])
            .env_clear()
            .env("NRI_PLUGIN_NAME", name)
            .env("NRI_PLUGIN_IDX", index)
            .env("NRI_PLUGIN_SOCKET", "3")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        let plugin = Plugin::spawn(command, tempfile::tempdir().unwrap());
        (plugin, Runtime::new(ours))
    }

    fn spawn(mut command: Command, dir: tempfile::TempDir) -> Plugin {
        let log = dir.path().join("log");
        command.stderr(std::fs::File::create(&log).unwrap());
        Plugin {
            child: command.spawn().unwrap(),
            log,
            dir,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("nri.sock")
    }

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn end(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn next(listener: &UnixListener) -> Runtime {
    Runtime::new(listener.accept().unwrap().0)
}

pub fn of_workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}
