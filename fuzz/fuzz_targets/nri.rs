//! What a container runtime sends, and in it what a pod says: frames that are put together, and a container that is
//! decided on a host that allows everything. No panic, and one line in a refusal.

#![no_main]

mod fake_host;

use std::io::{self, Cursor, Read, Write};
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use onload_nri::create::{create, format_error_line};
use onload_nri::runtime::NriRuntime;
use onload_nri::wire::messages::{ConfigureRequest, CreateContainerResponse};
use onload_nri::wire::mux::Mux;
use prost::Message;

use fake_host::FakeHost;

/// The runtime's bytes; what is sent to it goes nowhere.
struct Incoming<'a>(Cursor<&'a [u8]>);

impl Read for Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Incoming<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut mux = Mux::new(Incoming(Cursor::new(bytes)));
    while mux.receive().is_ok() {}
    let host = FakeHost(PathBuf::from("/nonexistent"));
    for (name, version) in [("containerd", "2.1.9"), ("containerd", "1.7.6"), ("docker", "29.0.0")]
    {
        let runtime = NriRuntime::new(&ConfigureRequest {
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            ..ConfigureRequest::default()
        });
        match create(bytes, &runtime, &|decide| decide(&host, &host)) {
            Ok(created) => {
                CreateContainerResponse::decode(&*created.payload).expect("what we wrote is read");
            }
            Err(failure) => {
                let line = format_error_line(&failure.error);
                assert!(!line.contains(char::is_control), "{line:?}");
            }
        }
    }
});
