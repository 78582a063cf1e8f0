//! The host's side of go-plugin, as Nomad's agent has it: it starts the program with its variables, reads one line
//! of its standard output, and dials the socket.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use onload_nomad::wire::base::base_plugin_client::BasePluginClient;
use onload_nomad::wire::base::{
    ConfigSchemaRequest, PluginInfoRequest, PluginInfoResponse, SetConfigRequest,
};
use onload_nomad::wire::device::device_plugin_client::DevicePluginClient;
use onload_nomad::wire::device::{
    ContainerReservation, DeviceGroup, DeviceGroupStats, FingerprintRequest, FingerprintResponse,
    ReserveRequest, StatsRequest,
};
use onload_nomad::wire::go_plugin::Empty;
use onload_nomad::wire::go_plugin::grpc_controller_client::GrpcControllerClient;
use onload_nomad::wire::hclspec::Spec;
use onload_test_tree::Log;
use prost_types::Duration;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::{AgentHost, PATIENCE};

const COOKIE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";

pub(crate) struct Agent {
    child: Child,
    /// The line that it said, in fields.
    pub(crate) line: Vec<String>,
    stdout: Option<BufReader<std::process::ChildStdout>>,
    log: Log,
    pub(crate) channel: Channel,
}

pub(crate) fn start(host: &AgentHost) -> Command {
    let mut command = start_at(host, env!("CARGO_BIN_EXE_onload-nomad-device"));
    command.arg("--spec-dir").arg(host.spec_dir());
    command
}

/// The same, with a program between the agent and the plugin, and with the directories that engines read.
fn start_at(host: &AgentHost, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    command.env("NOMAD_PLUGIN_MAGIC_COOKIE", COOKIE);
    command.env("PLUGIN_PROTOCOL_VERSIONS", "2");
    command.env("PLUGIN_MIN_PORT", "10000").env("PLUGIN_MAX_PORT", "14000");
    command.env("TMPDIR", host.sockets());
    command.env("ONLOAD_NOMAD_HOST_ROOT", host.root());
    if host.config_path().exists() {
        command.arg("--config").arg(host.config_path());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn config(config: &Value) -> SetConfigRequest {
    SetConfigRequest {
        msgpack_config: rmp_serde::to_vec(config).unwrap(),
        plugin_api_version: "v0.1.0".to_owned(),
    }
}

impl Agent {
    pub(crate) async fn start(host: &AgentHost) -> Agent {
        Agent::run(start(host)).await
    }

    /// Starts it and configures it, as often as Nomad does.
    pub(crate) async fn configured(host: &AgentHost, settings: &Value) -> Agent {
        let agent = Agent::start(host).await;
        agent.set(settings).await.unwrap();
        agent
    }

    /// The same, with the specifications that engines of the host read.
    pub(crate) async fn of_the_engines(host: &AgentHost, settings: &Value) -> Agent {
        let program = env!("CARGO_BIN_EXE_onload-nomad-device");
        let agent = Agent::run(start_at(host, program)).await;
        agent.set(settings).await.unwrap();
        agent
    }

    /// Starts the plugin by an agent that is a process of its own, and that can be killed.
    pub(crate) async fn below_another(host: &AgentHost) -> Agent {
        let mut command = start_at(host, "/bin/sh");
        command.args(["-c", "\"$0\" \"$@\" & wait"]);
        command.arg(env!("CARGO_BIN_EXE_onload-nomad-device"));
        command.arg("--spec-dir").arg(host.spec_dir());
        Agent::run(command).await
    }

    pub(crate) async fn run(mut command: Command) -> Agent {
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let line: Vec<String> = line.trim_end_matches('\n').split('|').map(str::to_owned).collect();
        assert!(line.len() >= 5, "{line:?}");
        let log = Log::from_stream(child.stderr.take());
        let channel = dial(Path::new(&line[3])).await;
        Agent { child, line, stdout: Some(stdout), log, channel }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        PathBuf::from(&self.line[3])
    }

    pub(crate) async fn dial_again(&mut self) {
        self.channel = dial(&self.socket()).await;
    }

    pub(crate) fn base(&self) -> BasePluginClient<Channel> {
        BasePluginClient::new(self.channel.clone())
    }

    pub(crate) fn devices(&self) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel.clone())
    }

    pub(crate) async fn info(&self) -> PluginInfoResponse {
        self.base().plugin_info(PluginInfoRequest {}).await.unwrap().into_inner()
    }

    pub(crate) async fn schema(&self) -> Spec {
        let answer = self.base().config_schema(ConfigSchemaRequest {}).await;
        answer.unwrap().into_inner().spec.unwrap()
    }

    pub(crate) async fn set(&self, settings: &Value) -> Result<(), Status> {
        self.base().set_config(config(settings)).await.map(|_| ())
    }

    pub(crate) async fn fingerprint(&self) -> Devices {
        let stream = self.devices().fingerprint(FingerprintRequest {}).await;
        Devices { stream: stream.unwrap().into_inner() }
    }

    pub(crate) async fn published(&self) -> BTreeMap<String, DeviceGroup> {
        self.fingerprint().await.next().await
    }

    pub(crate) async fn reserve(&self, ids: &[&str]) -> Result<ContainerReservation, Status> {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let answer = self.devices().reserve(ReserveRequest { device_ids }).await?;
        Ok(answer.into_inner().container_res.unwrap())
    }

    pub(crate) async fn stats(&self) -> Vec<DeviceGroupStats> {
        let request =
            StatsRequest { collection_interval: Some(Duration { seconds: 3600, nanos: 0 }) };
        let mut stream = self.devices().stats(request).await.unwrap().into_inner();
        timeout(PATIENCE, stream.message()).await.unwrap().unwrap().unwrap().groups
    }

    pub(crate) async fn shutdown(&self) {
        let mut client = GrpcControllerClient::new(self.channel.clone());
        client.shutdown(Empty {}).await.unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end; what it wrote to its standard output beside the line, and what to its log.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String, String) {
        let status = self.child.wait().unwrap();
        let mut rest = String::new();
        self.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        (status, rest, self.log.whole())
    }

    /// Waits for the end of the process that was started, whatever it leaves behind.
    pub(crate) fn reap(&mut self) {
        self.child.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until so many lines of the log have these words.
    #[track_caller]
    pub(crate) fn logged_times(&mut self, times: usize, words: &str) {
        self.log.times(times, &[words]);
    }

    #[track_caller]
    pub(crate) fn logged(&mut self, words: &[&str]) -> Value {
        self.log.line(words)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn dial(path: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    // What Go's library says of a socket that has no name.
    let endpoint = endpoint.origin("http://unused".parse().unwrap());
    endpoint.connect().await.unwrap()
}

pub(crate) struct Devices {
    stream: Streaming<FingerprintResponse>,
}

impl Devices {
    /// The next set, by `VENDOR/TYPE/NAME`.
    pub(crate) async fn next(&mut self) -> BTreeMap<String, DeviceGroup> {
        let message = timeout(PATIENCE, self.stream.message())
            .await
            .unwrap()
            .unwrap()
            .expect("the stream has ended");
        let groups = message.device_group.into_iter().map(|group| {
            let (vendor, kind, name) = (&group.vendor, &group.device_type, &group.device_name);
            (format!("{vendor}/{kind}/{name}"), group)
        });
        groups.collect()
    }

    pub(crate) async fn until(
        &mut self,
        is: impl Fn(&BTreeMap<String, DeviceGroup>) -> bool,
    ) -> BTreeMap<String, DeviceGroup> {
        loop {
            let groups = self.next().await;
            if is(&groups) {
                return groups;
            }
        }
    }

    pub(crate) async fn broken(mut self) -> Option<Status> {
        loop {
            match timeout(PATIENCE, self.stream.message()).await.unwrap() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }
}
