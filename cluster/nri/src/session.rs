//! A connection to a runtime, from registration to its end.

use std::error::Error as _;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use onload_sys::error::{Context, Error, Result};
use onload_sys::text::to_one_line;
use onload_sys::{bail, error};
use prost::Message as _;

use crate::create::{CreateAnswer, CreateFailure, format_error_line, has_request};
use crate::journal::{Journal, Severity};
use crate::runtime::NriRuntime;
use crate::wire::messages::{
    ConfigureRequest, ConfigureResponse, RegisterPluginRequest, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::wire::mux::{Mux, PLUGIN, RUNTIME};
use crate::wire::ttrpc::{self, MAX_MESSAGE, REQUEST, RESPONSE, Request, Response, TtrpcMessage};

/// Time limit for a runtime to read a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Default time that a runtime waits for an answer (pkg/api/timeouts.go).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The service that the runtime calls.
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The service that this plugin calls.
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The subscribed events: only CREATE_CONTAINER, the event with the number 4. Others are not needed: an unused
/// reservation expires, and the hook's poststop ends a lease.
const EVENTS: i32 = 1 << 3;

/// The stream of the registration call; a client's first call has the number 1.
const REGISTRATION: u32 = 1;

/// Decides which devices containers receive. Implementations read the host's files again for each container.
pub trait Decider: Sync {
    /// Decides for one container. After an error the runtime does not create it.
    fn create(&self, message: &[u8], runtime: &NriRuntime) -> Result<CreateAnswer, CreateFailure>;

    fn cancel_reservation(&self, answer: &CreateAnswer);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginRegistration {
    /// The plugin's name: letters, digits and `_.+-`.
    pub name: String,
    /// Two digits by which the runtime orders its plugins.
    pub index: String,
    /// Time limit for each read until the runtime calls Configure. The runtime itself closes the connection after its
    /// `plugin_registration_timeout`, so this limit matters only if the runtime neither calls Configure nor closes the
    /// connection.
    pub timeout: Duration,
}

#[derive(Debug)]
pub struct NriSession<'a, D> {
    mux: Mux<UnixStream>,
    registration: &'a PluginRegistration,
    decider: &'a D,
    journal: Journal,
    runtime: Option<NriRuntime>,
    answer_timeout: Duration,
    /// Whether the runtime has sent its list of existing containers. After that it sends requests for new ones.
    is_synchronized: bool,
}

impl<'a, D: Decider> NriSession<'a, D> {
    pub fn new(
        stream: UnixStream,
        registration: &'a PluginRegistration,
        decider: &'a D,
        journal: Journal,
    ) -> Self {
        NriSession {
            mux: Mux::new(stream),
            registration,
            decider,
            journal,
            runtime: None,
            answer_timeout: ANSWER_TIMEOUT,
            is_synchronized: false,
        }
    }

    pub fn is_synchronized(&self) -> bool {
        self.is_synchronized
    }

    /// Registers the plugin and answers calls until the connection ends. Returns why it ended.
    pub fn run(&mut self) -> Error {
        let ended = self.register().and_then(|()| {
            loop {
                let received = self.mux.receive();
                let (connection, message) = received.map_err(|error| self.name_wait(error))?;
                self.handle_message(connection, &message, Instant::now())?;
            }
        });
        match ended {
            Err(error) => error,
            Ok(never) => never,
        }
    }

    fn register(&mut self) -> Result<()> {
        self.set_timeout(Some(self.registration.timeout)).context("setting up the connection")?;
        let plugin = RegisterPluginRequest {
            plugin_name: self.registration.name.clone(),
            plugin_idx: self.registration.index.clone(),
        };
        let call = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: plugin.encode_to_vec(),
            timeout_nano: 0,
        };
        let message = TtrpcMessage {
            stream: REGISTRATION,
            kind: REQUEST,
            flags: 0,
            body: call.encode_to_vec(),
        };
        self.mux.send(RUNTIME, &message)
    }

    /// Replaces the error of a read that timed out with one that names the missing call. Other errors stay unchanged.
    fn name_wait(&self, error: Error) -> Error {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        if cause.is_none_or(|cause| cause.kind() != io::ErrorKind::WouldBlock) {
            return error;
        }
        let timeout = self.registration.timeout;
        error!(
            "the runtime did not answer RegisterPlugin and call Configure within {timeout:?}; if it is busy, raise --registration-timeout, and plugin_registration_timeout in its configuration"
        )
    }

    /// Sets the time limit of each read, or `None` for no limit. Each write has the limit [`WRITE_TIMEOUT`].
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let stream = self.mux.stream();
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        stream.set_read_timeout(timeout)
    }

    /// Handles a message. The runtime may call this plugin before it answers the registration.
    fn handle_message(
        &mut self,
        connection: u32,
        message: &TtrpcMessage,
        received: Instant,
    ) -> Result<()> {
        match (connection, message.kind) {
            (RUNTIME, RESPONSE) if message.stream == REGISTRATION => {
                self.handle_registered(message)
            }
            (PLUGIN, REQUEST) => self.handle_call(message, received),
            // Ignores other messages: this plugin makes no other calls, and the runtime calls it only on PLUGIN.
            _ => Ok(()),
        }
    }

    fn handle_registered(&self, message: &TtrpcMessage) -> Result<()> {
        let response = Response::decode(&*message.body)
            .context("reading the answer to the registration of the runtime")?;
        match response.status.filter(|status| status.code != 0) {
            None => Ok(()),
            Some(status) => {
                let PluginRegistration { name, index, .. } = self.registration;
                let reason = to_one_line(&status.message);
                bail!("registering as {index}-{name}: the runtime answered {reason}")
            }
        }
    }

    fn handle_call(&mut self, message: &TtrpcMessage, received: Instant) -> Result<()> {
        let request = Request::decode(&*message.body).context("reading a call of the runtime")?;
        let response = match (request.service.as_str(), request.method.as_str()) {
            (PLUGIN_SERVICE, "CreateContainer") => {
                return self.create(message.stream, &request, received);
            }
            (PLUGIN_SERVICE, "Configure") => self.configure(&request.payload),
            (PLUGIN_SERVICE, "Synchronize") => self.synchronize(&request.payload),
            // The runtime closes the connection after the answer.
            (PLUGIN_SERVICE, "Shutdown") => Response::ok(Vec::new()),
            (PLUGIN_SERVICE, what) | (what, _) => {
                let text = format!("onload-nri does not support {}", to_one_line(what));
                Response::error(ttrpc::UNIMPLEMENTED, text)
            }
        };
        self.send_response(message.stream, &response)
    }

    fn send_response(&mut self, stream: u32, response: &Response) -> Result<()> {
        self.mux.send(PLUGIN, &response.to_message(stream))
    }

    /// Rejects a container, so that the runtime does not create it.
    fn refuse(&mut self, stream: u32, text: String) -> Result<()> {
        self.send_response(stream, &Response::error(ttrpc::FAILED_PRECONDITION, text))
    }

    fn configure(&mut self, payload: &[u8]) -> Response {
        let request = match ConfigureRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => return unreadable_response(&error),
        };
        let runtime = NriRuntime::new(&request);
        let how = if runtime.features.names {
            "devices are passed as CDI names"
        } else if runtime.has_pods() {
            "devices are passed as edits"
        } else {
            "it supports no devices"
        };
        self.journal.write(Severity::Info, &format!("registered with {runtime}; {how}"));
        self.answer_timeout =
            if_positive(request.request_timeout).map_or(ANSWER_TIMEOUT, Duration::from_millis);
        self.runtime = Some(runtime);
        // No limit from here on: containerd calls Synchronize only when no container is being stopped, and stopping one
        // takes up to a pod's grace period (BlockPluginSync in internal/cri/server/container_stop.go).
        if let Err(error) = self.set_timeout(None) {
            let text = format!("setting up the connection: {error}");
            self.journal.write(Severity::Warning, &text);
        }
        Response::ok(ConfigureResponse { events: EVENTS }.encode_to_vec())
    }

    /// Acknowledges the list of existing containers, or a part of it. Devices cannot be added to existing containers.
    fn synchronize(&mut self, payload: &[u8]) -> Response {
        let request = match SynchronizeRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => return unreadable_response(&error),
        };
        if !request.more {
            self.is_synchronized = true;
        }
        let more = request.more;
        Response::ok(SynchronizeResponse { more }.encode_to_vec())
    }

    fn create(&mut self, stream: u32, request: &Request, received: Instant) -> Result<()> {
        let Some(runtime) = &self.runtime else {
            let text = "onload-nri: the runtime sent a container before Configure";
            return self.refuse(stream, text.to_owned());
        };
        let wait =
            if_positive(request.timeout_nano).map_or(self.answer_timeout, Duration::from_nanos);
        let (decider, mux, journal) = (self.decider, &mut self.mux, self.journal);
        let (sender, receiver) = mpsc::channel();
        let decided = thread::scope(|scope| {
            let decide = || decider.create(&request.payload, runtime);
            // Decides about a container without a request in this thread: this is quick and never rejects it.
            if !has_request(&request.payload) {
                return Ok(Some(decide()));
            }
            scope.spawn(move || {
                let _ = sender.send(decide());
            });
            let limit = (wait - wait / 8).saturating_sub(received.elapsed());
            if let Ok(decision) = receiver.recv_timeout(limit) {
                return Ok(Some(decision));
            }
            // Rejects the container before the runtime's limit. If the runtime received no answer, it would create the
            // container without its devices.
            let text = format!(
                "no decision within {wait:?}, the runtime's limit; raise its \
                 plugin_request_timeout, or find the cause of the delay"
            );
            journal.write(Severity::Error, &text);
            let response =
                Response::error(ttrpc::FAILED_PRECONDITION, format!("onload-nri: {text}"));
            let sent = mux.send(PLUGIN, &response.to_message(stream));
            if let Ok(Ok(answer)) = receiver.recv() {
                decider.cancel_reservation(&answer);
            }
            sent.map(|()| None)
        })?;
        let mut answer = match decided {
            None => return Ok(()),
            Some(Ok(answer)) => answer,
            Some(Err(CreateFailure { container: failed_container, error })) => {
                self.journal.write(Severity::Error, &format!("{failed_container}: {error:#}"));
                return self.refuse(stream, format_error_line(&error));
            }
        };
        let response = Response::ok(std::mem::take(&mut answer.payload));
        let message = response.to_message(stream);
        let length = message.body.len();
        if length > MAX_MESSAGE {
            // The answer repeats a container's own LD_PRELOAD, which may make it too long. The error of a too long
            // message would end the connection, and other pods would start without devices until the plugin has
            // connected again.
            self.decider.cancel_reservation(&answer);
            let text = format!(
                "the answer has {length} bytes, but NRI allows {MAX_MESSAGE}; shorten the \
                 container's variables"
            );
            self.journal.write(Severity::Error, &text);
            return self.refuse(stream, format!("onload-nri: {text}"));
        }
        let sent = self.mux.send(PLUGIN, &message);
        match sent {
            Ok(()) => self.log(&answer),
            Err(_) => self.decider.cancel_reservation(&answer),
        }
        sent
    }

    fn log(&self, answer: &CreateAnswer) {
        let warnings = answer.warnings.iter().map(|line| (Severity::Warning, line));
        let granted = answer.granted.iter().map(|line| (Severity::Info, line));
        let reasons = answer.reasons.iter().map(|line| (Severity::Debug, line));
        for (severity, line) in warnings.chain(granted).chain(reasons) {
            self.journal.write(severity, line);
        }
    }
}

fn if_positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

fn unreadable_response(error: &prost::DecodeError) -> Response {
    Response::error(ttrpc::INVALID_ARGUMENT, format!("onload-nri: {error}"))
}
