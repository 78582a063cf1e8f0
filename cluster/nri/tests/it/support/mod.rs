//! A runtime's side of NRI, whose frames and ttrpc are written from the protocol and not with the code under test. And
//! hosts whose files are a test's own.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

pub mod host;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onload_nri::wire::messages::{
    ConfigureRequest, ConfigureResponse, Container, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, PodSandbox, RegisterPluginRequest,
};
use onload_nri::wire::ttrpc::{Request, Response, Status};
use prost::Message;

pub const SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_onload-nri");
const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;
/// No test waits so long for anything that happens.
const NEVER: Duration = Duration::from_secs(60);

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
        Runtime { stream, begun: [Vec::new(), Vec::new()], last_call: 0, frame: usize::MAX }
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
            assert!(length <= 4096, "a frame of {length} bytes is an error to a runtime");
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
        self.send(RUNTIME, stream, 2, &[]);
        (name, index)
    }

    /// The registration, which is not answered; its stream last.
    pub fn registration(&mut self) -> (String, String, u32) {
        let (connection, stream, kind, body) = self.receive().expect("a registration");
        assert_eq!((connection, stream, kind), (RUNTIME, 1, 1));
        let call = Request::decode(&*body).unwrap();
        assert_eq!(call.service, "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(call.method, "RegisterPlugin");
        let plugin = RegisterPluginRequest::decode(&*call.payload).unwrap();
        (plugin.plugin_name, plugin.plugin_idx, stream)
    }

    pub fn refuse(&mut self, stream: u32, message: &str) {
        let response = Response::error(2, message.to_owned());
        self.send(RUNTIME, stream, 2, &response.encode_to_vec());
    }

    /// Calls a method of the plugin, and does not wait for the answer.
    pub fn begin(&mut self, service: &str, method: &str, payload: Vec<u8>) -> u32 {
        let two_seconds = 2_000_000_000;
        self.begin_within(service, method, payload, two_seconds)
    }

    pub fn begin_within(
        &mut self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
        timeout_nano: i64,
    ) -> u32 {
        self.last_call += if self.last_call == 0 { 1 } else { 2 };
        let call = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano,
        };
        self.send(PLUGIN, self.last_call, 1, &call.encode_to_vec());
        self.last_call
    }

    /// The bytes of the message that a call gives.
    pub fn answer(&mut self, stream: u32) -> Result<Vec<u8>, Status> {
        let (connection, answered, kind, body) = self.receive().expect("an answer");
        assert_eq!((connection, answered, kind), (PLUGIN, stream, 2));
        let response = Response::decode(&*body).unwrap();
        match response.status {
            Some(status) if status.code != 0 => Err(status),
            _ => Ok(response.payload),
        }
    }

    pub fn call(&mut self, method: &str, payload: Vec<u8>) -> Result<Vec<u8>, Status> {
        let stream = self.begin(SERVICE, method, payload);
        self.answer(stream)
    }

    /// The bits of the events that the plugin wants.
    pub fn configure(&mut self, name: &str, version: &str) -> Result<i32, Status> {
        let request = ConfigureRequest {
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            request_timeout: 2000,
            ..ConfigureRequest::default()
        };
        let answer = self.call("Configure", request.encode_to_vec())?;
        Ok(ConfigureResponse::decode(&*answer).unwrap().events)
    }

    /// Takes the registration, and does what a runtime does before it asks of containers.
    pub fn set_up(&mut self, name: &str, version: &str) {
        self.accept();
        assert_eq!(self.configure(name, version), Ok(8));
        assert_eq!(self.call("Synchronize", Vec::new()), Ok(Vec::new()));
    }

    pub fn create(
        &mut self,
        request: &CreateContainerRequest,
    ) -> Result<ContainerAdjustment, Status> {
        let answer = self.call("CreateContainer", request.encode_to_vec())?;
        let answer = CreateContainerResponse::decode(&*answer).unwrap();
        Ok(answer.adjust.unwrap_or_default())
    }
}

/// An answer that changes nothing.
pub fn nothing() -> ContainerAdjustment {
    ContainerAdjustment::default()
}

pub fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

pub fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

pub fn pod(annotations: &[(&str, &str)]) -> PodSandbox {
    PodSandbox {
        name: "shop".to_owned(),
        namespace: "default".to_owned(),
        annotations: map(annotations),
        ..PodSandbox::default()
    }
}

/// The container `server` of it, without environment and mounts.
pub fn container(id: &str) -> Container {
    Container {
        id: id.to_owned(),
        name: "server".to_owned(),
        args: texts(&["/bin/server", "-v"]),
        ..Container::default()
    }
}

pub fn creation(pod: PodSandbox, container: Container) -> CreateContainerRequest {
    CreateContainerRequest { pod: Some(pod), container: Some(container) }
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
        Plugin { child: command.spawn().unwrap(), log, dir }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("nri.sock")
    }

    pub fn output(&self) -> String {
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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
