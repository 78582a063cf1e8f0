//! The program beside a runtime: registration, the runtime's calls, its end and its faults.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Plugin, Runtime, SERVICE, container, creation, next, nothing, pod, texts};
use onload_nri::create::{CreateAnswer, CreateFailure};
use onload_nri::journal::{Journal, Severity};
use onload_nri::runtime::NriRuntime;
use onload_nri::session::{Decider, NriSession, PluginRegistration};
use onload_nri::wire::messages::{
    Container, CreateContainerRequest, SynchronizeRequest, SynchronizeResponse,
};
use prost::Message;

const NOTHING: &[(&str, &str)] = &[("example.com/colour", "green")];

fn asks_for_nothing(id: &str) -> CreateContainerRequest {
    creation(pod(NOTHING), container(id))
}

#[test]
fn it_registers_by_its_name_and_wants_to_be_asked_of_new_containers_alone() {
    let (_plugin, listener) = Plugin::start(&["--index", "42"]);
    let mut runtime = next(&listener);
    assert_eq!(runtime.accept(), ("onload".to_owned(), "42".to_owned()));
    let events = runtime.configure("containerd", "v2.1.9").unwrap();
    assert_eq!(events, 1 << 3, "CREATE_CONTAINER is event 4");
}

#[test]
fn a_runtime_that_calls_before_it_answers_the_registration_is_served() {
    let (_plugin, listener) = Plugin::start(&[]);
    let mut runtime = next(&listener);
    let (_, _, stream) = runtime.registration();
    assert_eq!(runtime.configure("cri-o", "1.34.0").unwrap(), 8);
    runtime.send(2, stream, 2, &[]);
    assert!(runtime.call("Synchronize", Vec::new()).unwrap().is_empty());
}

#[test]
fn five_hundred_containers_are_told_in_parts_and_none_is_changed() {
    let (_plugin, listener) = Plugin::start(&[]);
    let mut runtime = next(&listener);
    runtime.accept();
    runtime.configure("containerd", "v2.1.9").unwrap();
    let annotated = [("onload.dev/nic", "all")];
    for part in 0..5 {
        let mut pages = Vec::new();
        for number in 0..100 {
            let id = format!("c{part}{number}");
            let container = Container { env: texts(&[&"X=".repeat(4000)]), ..container(&id) };
            // Pods and containers have the numbers that they have in a creation.
            creation(pod(&annotated), container).encode(&mut pages).unwrap();
        }
        let more = part < 4;
        SynchronizeRequest { more }.encode(&mut pages).unwrap();
        let answer = runtime.call("Synchronize", pages).unwrap();
        assert_eq!(answer, SynchronizeResponse { more }.encode_to_vec());
    }
    assert_eq!(runtime.create(&asks_for_nothing("new")).unwrap(), nothing());
}

#[test]
fn a_container_that_asks_for_nothing_is_not_even_read() {
    let (_plugin, listener) = Plugin::start(&["--host-root", "/nonexistent"]);
    let mut runtime = next(&listener);
    runtime.set_up("containerd", "v2.1.9");
    assert_eq!(runtime.create(&asks_for_nothing("c1")).unwrap(), nothing());
    // Not protobuf at all: who does not name us is not our business.
    let garbage = vec![0xff; 100];
    assert!(runtime.call("CreateContainer", garbage).unwrap().is_empty());
    // What names us is, and a host that cannot be looked at gives nothing.
    let garbage = [&[0xff; 100][..], b"onload.dev/nic"].concat();
    let refused = runtime.call("CreateContainer", garbage).unwrap_err().message;
    assert!(refused.starts_with("onload-nri: reading the runtime's message"), "{refused}");
    let asks = creation(pod(&[("onload.dev/nic", "all")]), container("c2"));
    let refused = runtime.create(&asks).unwrap_err().message;
    assert!(refused.contains("/nonexistent"), "{refused}");
}

#[test]
fn frames_of_any_length_make_the_same_messages() {
    let (_plugin, listener) = Plugin::start(&[]);
    let mut runtime = next(&listener);
    runtime.set_up("containerd", "v2.1.9");
    let long = "y".repeat(100_000);
    for frame in [1, 7, 4096, 5000, usize::MAX] {
        runtime.frame = frame;
        let container = Container { env: texts(&[&long]), ..container("c1") };
        let asked = creation(pod(NOTHING), container);
        assert_eq!(runtime.create(&asked).unwrap(), nothing(), "{frame}");
    }
}

#[test]
fn a_message_of_four_mebibytes_is_answered() {
    let (_plugin, listener) = Plugin::start(&[]);
    let mut runtime = next(&listener);
    runtime.set_up("containerd", "v2.1.9");
    let long = "z".repeat((4 << 20) - 1024);
    let container = Container { env: texts(&[&long]), ..container("c1") };
    let asked = creation(pod(NOTHING), container);
    assert_eq!(runtime.create(&asked).unwrap(), nothing());
}

#[test]
fn what_a_plugin_does_not_have_is_refused_and_the_connection_goes_on() {
    let (_plugin, listener) = Plugin::start(&[]);
    let mut runtime = next(&listener);
    runtime.set_up("containerd", "v2.1.9");
    let refused = runtime.call("EvictContainer", Vec::new()).unwrap_err();
    assert_eq!(refused.code, 12);
    assert!(refused.message.contains("EvictContainer"));
    let call = runtime.begin("nri.pkg.api.v1alpha1.Other", "Configure", Vec::new());
    assert_eq!(runtime.answer(call).unwrap_err().code, 12);
    assert!(runtime.call("Shutdown", Vec::new()).unwrap().is_empty());
    assert_eq!(runtime.create(&asks_for_nothing("c1")).unwrap(), nothing());
}

#[test]
fn a_container_before_anybody_said_which_runtime_asks_is_refused() {
    let (_plugin, listener) = Plugin::start(&[]);
    let mut runtime = next(&listener);
    runtime.accept();
    let refused = runtime.create(&asks_for_nothing("c1")).unwrap_err();
    assert!(refused.message.contains("before Configure"), "{refused:?}");
}

#[test]
fn a_runtime_that_ends_and_comes_again_is_served_again() {
    let (plugin, listener) = Plugin::start(&[]);
    for _ in 0..3 {
        let mut runtime = next(&listener);
        runtime.set_up("containerd", "v2.1.9");
        assert_eq!(runtime.create(&asks_for_nothing("c1")).unwrap(), nothing());
    }
    // The socket is made anew, as by a runtime that is restarted.
    drop(listener);
    std::fs::remove_file(plugin.socket()).unwrap();
    let listener = UnixListener::bind(plugin.socket()).unwrap();
    let mut runtime = next(&listener);
    runtime.set_up("containerd", "v2.2.0");
    let message = plugin.output();
    assert!(
        message.contains(
            "<6>onload-nri: registered with containerd v2.2.0; devices are passed as CDI names"
        ),
        "{message}"
    );
    assert!(message.contains("<4>onload-nri: the runtime closed the connection"), "{message}");
}

#[test]
fn a_violation_of_the_protocol_ends_the_connection_and_another_follows() {
    let (plugin, listener) = Plugin::start(&[]);
    let long_frame = [1_u32.to_be_bytes(), 0x7fff_ffff_u32.to_be_bytes()].concat();
    let body = [0, 0, 0, 0, 0, 0, 0, 1, 9, 0];
    let no_such_type = [&1_u32.to_be_bytes()[..], &10_u32.to_be_bytes(), &body].concat();
    let body = [0x7f, 0, 0, 0, 0, 0, 0, 1, 1, 0];
    let long_message = [&1_u32.to_be_bytes()[..], &10_u32.to_be_bytes(), &body].concat();
    for bytes in [long_frame, no_such_type, long_message] {
        let mut runtime = next(&listener);
        runtime.set_up("containerd", "v2.1.9");
        runtime.stream().write_all(&bytes).unwrap();
        assert!(runtime.receive().is_none());
    }
    let mut runtime = next(&listener);
    runtime.set_up("containerd", "v2.1.9");
    let message = plugin.output();
    assert!(message.contains("is this an NRI socket?"), "{message}");
}

#[test]
fn a_runtime_that_refuses_the_plugin_is_asked_again_and_its_reason_is_told() {
    let (plugin, listener) = Plugin::start(&[]);
    for _ in 0..2 {
        let mut runtime = next(&listener);
        let (_, _, stream) = runtime.registration();
        runtime.refuse(stream, "no\nplugins");
        assert!(runtime.receive().is_none());
    }
    let mut runtime = next(&listener);
    runtime.set_up("containerd", "v2.1.9");
    let line = "registering as 50-onload: the runtime answered no\\nplugins";
    assert_eq!(plugin.output().matches(line).count(), 1, "{}", plugin.output());
}

#[test]
fn a_plugin_that_a_runtime_launches_has_the_name_that_it_is_told_and_ends_with_it() {
    let (mut plugin, mut runtime) = Plugin::launch("site-onload", "07");
    let named = ("site-onload".to_owned(), "07".to_owned());
    assert_eq!(runtime.accept(), named);
    runtime.configure("containerd", "v1.7.24").unwrap();
    runtime.call("Synchronize", Vec::new()).unwrap();
    assert_eq!(runtime.create(&asks_for_nothing("c1")).unwrap(), nothing());
    runtime.stream().shutdown(Shutdown::Both).unwrap();
    assert!(plugin.end().success(), "{}", plugin.output());
}

#[test]
fn a_launched_plugin_that_is_not_taken_fails_with_the_reason() {
    let (mut plugin, mut runtime) = Plugin::launch("onload", "07");
    let (_, _, stream) = runtime.registration();
    runtime.refuse(stream, "not today");
    assert_eq!(plugin.end().code(), Some(2));
    assert!(plugin.output().contains("the runtime answered not today"));
    let (mut plugin, _runtime) = Plugin::launch("onload", "7");
    assert_eq!(plugin.end().code(), Some(2));
    assert!(plugin.output().contains("expected two digits"), "{}", plugin.output());
}

/// Answers each container with some bytes, after doing something.
struct Answering<'a> {
    payload: Vec<u8>,
    first: Mutex<Box<dyn FnMut() + Send + 'a>>,
    given_back: AtomicU32,
}

impl<'a> Answering<'a> {
    fn after(first: impl FnMut() + Send + 'a) -> Self {
        Answering {
            payload: b"answered".to_vec(),
            first: Mutex::new(Box::new(first)),
            given_back: AtomicU32::new(0),
        }
    }
}

impl Decider for Answering<'_> {
    fn create(&self, _: &[u8], _: &NriRuntime) -> Result<CreateAnswer, CreateFailure> {
        (self.first.lock().unwrap())();
        Ok(CreateAnswer { payload: self.payload.clone(), ..CreateAnswer::default() })
    }

    fn cancel_reservation(&self, _: &CreateAnswer) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
    }
}

const QUIET: Journal = Journal { max_severity: Severity::Error };

fn registration() -> PluginRegistration {
    let timeout = Duration::from_secs(60);
    PluginRegistration { name: "onload".to_owned(), index: "50".to_owned(), timeout }
}

#[test]
fn a_container_is_refused_before_the_runtime_would_create_it_without_devices() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let with_runtime = std::thread::spawn(move || {
        let mut runtime = Runtime::new(theirs);
        runtime.set_up("containerd", "v1.7.24");
        let limit = Duration::from_millis(200);
        let asked = creation(pod(&[("onload.dev/nic", "all")]), container("late")).encode_to_vec();
        let began = Instant::now();
        let nanoseconds = limit.as_nanos().try_into().unwrap();
        let call = runtime.begin_within(SERVICE, "CreateContainer", asked, nanoseconds);
        let refused = runtime.answer(call).unwrap_err();
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
        assert!(refused.message.starts_with("onload-nri: no decision within"), "{refused:?}");
        assert!(refused.message.contains("raise its plugin_request_timeout"), "{refused:?}");
        // One that asks for nothing is never refused, and its answer is that of its call.
        let nothing = asks_for_nothing("c2").encode_to_vec();
        let call = runtime.begin_within(SERVICE, "CreateContainer", nothing, 1);
        assert_eq!(runtime.answer(call).unwrap(), b"answered");
    });
    let decider = Answering::after(|| std::thread::sleep(Duration::from_millis(400)));
    let registration = registration();
    let mut session = NriSession::new(ours, &registration, &decider, QUIET);
    session.run();
    with_runtime.join().unwrap();
    assert_eq!(decider.given_back.load(Ordering::Relaxed), 1);
}

#[test]
fn what_was_kept_for_an_answer_that_nobody_reads_is_given_back() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let closing = theirs.try_clone().unwrap();
    let with_runtime = std::thread::spawn(move || {
        let mut runtime = Runtime::new(theirs);
        runtime.set_up("containerd", "v1.7.24");
        let asked = asks_for_nothing("c1").encode_to_vec();
        runtime.begin(SERVICE, "CreateContainer", asked);
        assert!(runtime.receive().is_none());
    });
    let decider = Answering::after(|| closing.shutdown(Shutdown::Both).unwrap());
    let registration = registration();
    let mut session = NriSession::new(ours, &registration, &decider, QUIET);
    assert_eq!(session.run().to_string(), "the runtime closed the connection");
    with_runtime.join().unwrap();
    assert_eq!(decider.given_back.load(Ordering::Relaxed), 1);
}

#[test]
fn an_answer_that_no_message_can_hold_is_a_refusal_and_the_connection_goes_on() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let with_runtime = std::thread::spawn(move || {
        let mut runtime = Runtime::new(theirs);
        runtime.set_up("containerd", "v2.1.9");
        for _ in 0..2 {
            let refused = runtime.create(&asks_for_nothing("c1")).unwrap_err();
            assert_eq!(refused.code, 9);
            assert!(refused.message.contains("NRI allows 4194304"), "{refused:?}");
        }
    });
    let decider = Answering { payload: vec![0; 4 << 20], ..Answering::after(|| {}) };
    let registration = registration();
    let journal = Journal { max_severity: Severity::Error };
    NriSession::new(ours, &registration, &decider, journal).run();
    with_runtime.join().unwrap();
    assert_eq!(decider.given_back.load(Ordering::Relaxed), 2);
}

#[test]
fn a_runtime_that_has_said_who_it_is_may_tell_of_its_containers_much_later() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let shared = ours.try_clone().unwrap();
    let with_runtime = std::thread::spawn(move || {
        let mut runtime = Runtime::new(theirs);
        runtime.accept();
        let timeout = Duration::from_millis(100);
        shared.set_read_timeout(Some(timeout)).unwrap();
        runtime.configure("containerd", "v2.1.9").unwrap();
        // A container is being stopped meanwhile.
        std::thread::sleep(3 * timeout);
        assert!(runtime.call("Synchronize", Vec::new()).unwrap().is_empty());
        let asked = asks_for_nothing("c1").encode_to_vec();
        let answer = runtime.call("CreateContainer", asked).unwrap();
        assert_eq!(answer, b"answered");
    });
    let decider = Answering::after(|| {});
    let registration = registration();
    let mut session = NriSession::new(ours, &registration, &decider, QUIET);
    let ended = session.run().to_string();
    with_runtime.join().unwrap();
    assert_eq!(ended, "the runtime closed the connection");
    assert!(session.is_synchronized());
}

#[test]
fn a_runtime_that_does_not_answer_the_registration_is_left_with_what_was_waited_for() {
    let (ours, _silent) = UnixStream::pair().unwrap();
    let decider = Answering::after(|| {});
    let registration = PluginRegistration { timeout: Duration::from_millis(100), ..registration() };
    let mut session = NriSession::new(ours, &registration, &decider, QUIET);
    let ended = session.run().to_string();
    assert!(
        ended.starts_with(
            "the runtime did not answer RegisterPlugin and call Configure within 100ms"
        ),
        "{ended}"
    );
    assert!(!session.is_synchronized());
}
