//! One connection to a runtime, from the registration to its end.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use onload_sys::bail;
use onload_sys::error::{Context, Error, Result};
use onload_sys::text::to_one_line;
use prost::Message as _;

use crate::create::{Created, Failure, line};
use crate::journal::{Journal, Severity};
use crate::runtime::Runtime;
use crate::wire::messages::{
    ConfigureRequest, ConfigureResponse, RegisterPluginRequest, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::wire::mux::{Mux, PLUGIN, RUNTIME};
use crate::wire::ttrpc::{self, MAX_MESSAGE, Message, REQUEST, RESPONSE, Request, Response};

/// How long a runtime may take to answer the registration and to say who it is. It gives up on us after
/// 5 s itself (pkg/api/timeouts.go).
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a runtime waits for an answer if it does not say so (pkg/api/timeouts.go).
const ANSWER_IN: Duration = Duration::from_secs(2);

/// The service that the runtime calls.
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The service that we call.
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The events that we want: CREATE_CONTAINER, the fourth. A reservation that no container comes to claim expires by
/// itself, and the hook's poststop ends a lease, so nothing else is needed.
const EVENTS: i32 = 1 << 3;

/// The call by which we register; a client's first call has the number 1.
const REGISTRATION: u32 = 1;

/// What a session asks of the host: a value of its own for each container, since files change.
pub trait Decider {
    /// What a container gets; after an error it is not created.
    fn create(&self, message: &[u8], runtime: &Runtime) -> Result<Created, Failure>;

    fn give_back(&self, created: &Created);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Letters, digits, `_.+-`.
    pub name: String,
    pub index: String,
}

#[derive(Debug)]
pub struct Session<'a, D> {
    mux: Mux<UnixStream>,
    identity: &'a Identity,
    decider: &'a D,
    journal: Journal,
    runtime: Option<Runtime>,
    answer_in: Duration,
    /// Whether the runtime has told of its containers: from then on it asks of new ones.
    is_synchronized: bool,
}

impl<'a, D: Decider> Session<'a, D> {
    pub fn new(
        stream: UnixStream,
        identity: &'a Identity,
        decider: &'a D,
        journal: Journal,
    ) -> Self {
        Session {
            mux: Mux::new(stream),
            identity,
            decider,
            journal,
            runtime: None,
            answer_in: ANSWER_IN,
            is_synchronized: false,
        }
    }

    pub fn is_synchronized(&self) -> bool {
        self.is_synchronized
    }

    /// Registers, and answers until the connection ends, which it always does by an error.
    pub fn run(&mut self) -> Error {
        let ended = self.register().and_then(|()| {
            loop {
                let (connection, message) = self.mux.receive()?;
                self.take(connection, &message, Instant::now())?;
            }
        });
        match ended {
            Err(error) => error,
            Ok(never) => never,
        }
    }

    fn register(&mut self) -> Result<()> {
        self.set_patience(Some(PATIENCE)).context("setting up the connection")?;
        let plugin = RegisterPluginRequest {
            plugin_name: self.identity.name.clone(),
            plugin_idx: self.identity.index.clone(),
        };
        let call = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: plugin.encode_to_vec(),
            timeout_nano: 0,
        };
        let message =
            Message { stream: REGISTRATION, kind: REQUEST, flags: 0, body: call.encode_to_vec() };
        self.mux.send(RUNTIME, &message)
    }

    /// Bounds each read; none: for ever.
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        let stream = self.mux.stream();
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(patience)
    }

    /// The runtime may call us before it answers the registration.
    fn take(&mut self, connection: u32, message: &Message, came: Instant) -> Result<()> {
        match (connection, message.kind) {
            (RUNTIME, RESPONSE) if message.stream == REGISTRATION => self.registered(message),
            (PLUGIN, REQUEST) => self.call(message, came),
            // An answer to nothing, or a call where we call: the other end is not what we think it is,
            // but nothing of it was asked for either.
            _ => Ok(()),
        }
    }

    fn registered(&self, message: &Message) -> Result<()> {
        let response = Response::decode(&*message.body)
            .context("reading the answer to the registration of the runtime")?;
        match response.status.filter(|status| status.code != 0) {
            None => Ok(()),
            Some(status) => {
                let Identity { name, index } = self.identity;
                let says = to_one_line(&status.message);
                bail!("registering as {index}-{name}: the runtime says {says}")
            }
        }
    }

    fn call(&mut self, message: &Message, came: Instant) -> Result<()> {
        let request = Request::decode(&*message.body).context("reading a call of the runtime")?;
        let response = match (request.service.as_str(), request.method.as_str()) {
            (PLUGIN_SERVICE, "CreateContainer") => {
                return self.create(message.stream, &request, came);
            }
            (PLUGIN_SERVICE, "Configure") => self.configure(&request.payload),
            (PLUGIN_SERVICE, "Synchronize") => self.synchronize(&request.payload),
            // It will close the connection.
            (PLUGIN_SERVICE, "Shutdown") => Response::done(Vec::new()),
            (PLUGIN_SERVICE, what) | (what, _) => {
                let text = format!("onload-nri has no {}", to_one_line(what));
                Response::refused(ttrpc::UNIMPLEMENTED, text)
            }
        };
        self.answer(message.stream, &response)
    }

    fn answer(&mut self, stream: u32, response: &Response) -> Result<()> {
        self.mux.send(PLUGIN, &response.to_message(stream))
    }

    /// Refuses a container, which is not created then.
    fn refuse(&mut self, stream: u32, text: String) -> Result<()> {
        self.answer(stream, &Response::refused(ttrpc::FAILED_PRECONDITION, text))
    }

    fn configure(&mut self, payload: &[u8]) -> Response {
        let said = match ConfigureRequest::decode(payload) {
            Ok(said) => said,
            Err(error) => return unreadable(&error),
        };
        let runtime = Runtime::new(&said);
        let how = match runtime.abilities {
            able if able.names => "devices go by their CDI names",
            able if able.is_whole => "devices go as edits",
            _ => "it takes variables and mounts alone",
        };
        self.journal.say(Severity::Info, &format!("registered with {runtime}; {how}"));
        self.answer_in = positive(said.request_timeout).map_or(ANSWER_IN, Duration::from_millis);
        self.runtime = Some(runtime);
        // containerd tells of its containers when none is being stopped, which takes as long as a pod's grace time
        // (BlockPluginSync in internal/cri/server/container_stop.go).
        if let Err(error) = self.set_patience(None) {
            let text = format!("setting up the connection: {error}");
            self.journal.say(Severity::Warning, &text);
        }
        Response::done(ConfigureResponse { events: EVENTS }.encode_to_vec())
    }

    /// Nothing can be added to containers that there are.
    fn synchronize(&mut self, payload: &[u8]) -> Response {
        let request = match SynchronizeRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => return unreadable(&error),
        };
        if !request.more {
            self.is_synchronized = true;
        }
        let more = request.more;
        Response::done(SynchronizeResponse { more }.encode_to_vec())
    }

    fn create(&mut self, stream: u32, request: &Request, came: Instant) -> Result<()> {
        let Some(runtime) = &self.runtime else {
            let text = "onload-nri was asked of a container before Configure".to_owned();
            return self.refuse(stream, text);
        };
        let mut created = match self.decider.create(&request.payload, runtime) {
            Ok(created) => created,
            Err(Failure { of, error }) => {
                self.journal.say(Severity::Error, &format!("{of}: {error:#}"));
                return self.refuse(stream, line(&error));
            }
        };
        let wait = positive(request.timeout_nano).map_or(self.answer_in, Duration::from_nanos);
        if came.elapsed() >= wait {
            // The runtime has created the container without us, and closes the connection.
            self.decider.give_back(&created);
            let text =
                format!("an answer took more than {wait:?}, and the runtime went on without it");
            self.journal.say(Severity::Error, &text);
            return Ok(());
        }
        let response = Response::done(std::mem::take(&mut created.payload));
        let message = response.to_message(stream);
        let length = message.body.len();
        if length > MAX_MESSAGE {
            // A container's own LD_PRELOAD comes back in an answer. No pod may end the connection by that:
            // others would go without until the next one.
            self.decider.give_back(&created);
            let text = format!(
                "onload-nri: the answer has {length} bytes, and NRI allows {MAX_MESSAGE}; give the container shorter variables"
            );
            self.journal.say(Severity::Error, &text);
            return self.refuse(stream, text);
        }
        let sent = self.mux.send(PLUGIN, &message);
        match sent {
            Ok(()) => self.log(&created),
            Err(_) => self.decider.give_back(&created),
        }
        sent
    }

    fn log(&self, created: &Created) {
        let warnings = created.warnings.iter().map(|line| (Severity::Warning, line));
        let given = created.given.iter().map(|line| (Severity::Info, line));
        let reasons = created.reasons.iter().map(|line| (Severity::Debug, line));
        for (severity, line) in warnings.chain(given).chain(reasons) {
            self.journal.say(severity, line);
        }
    }
}

fn positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

fn unreadable(error: &prost::DecodeError) -> Response {
    Response::refused(ttrpc::INVALID_ARGUMENT, format!("onload-nri: {error}"))
}
