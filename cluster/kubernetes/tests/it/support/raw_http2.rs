//! A request of HTTP/2 with any authority (RFC 9113, RFC 7541): the library that we make requests with refuses
//! what kubelet sends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Headers,
    Reset(u32),
}

/// Calls a method of a gRPC service with an empty message.
pub(crate) fn call(socket: &Path, authority: &str, method: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal header without indexing, with a new name (RFC 7541, 6.2.2).
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap().min(127));
            assert!(text.len() < 127, "longer ones need more bytes");
            block.extend_from_slice(text.as_bytes());
        }
    }
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &block)).unwrap();
    // A message of gRPC: not compressed, of no bytes.
    stream.write_all(&frame(0, END_STREAM, 1, &[0; 5])).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).unwrap();
        match head[3] {
            HEADERS => return Answer::Headers,
            RST_STREAM => {
                return Answer::Reset(u32::from_be_bytes(payload[..4].try_into().unwrap()));
            }
            SETTINGS if head[4] & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, 0, &[])).unwrap();
            }
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}
